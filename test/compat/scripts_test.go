package compat

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// TestScripts runs what is in the folder scripts, as gateways and people call a server with nothing but
// HTTP: on one node, and on three of which every request goes to the next.
func TestScripts(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		lacks(t, "scripts", []drivers.Tool{{Program: "curl", Package: "curl"}})
	}
	bin, dir := serverBinary(t), runDir(t)
	scripts, err := filepath.Glob("scripts/[^l]*.sh") // not lib.sh
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for name, nodes := range map[string][]*server{
		"one":   {startServer(t, bin, filepath.Join(dir, "one"))},
		"three": startCluster(t, bin, filepath.Join(dir, "three"), 3),
	} {
		var addresses []string
		for _, n := range nodes {
			addresses = append(addresses, n.address())
		}
		for _, script := range scripts {
			t.Run(strings.TrimSuffix(filepath.Base(script), ".sh")+"/"+name, func(t *testing.T) {
				t.Parallel()
				if out, err := exec.Command("bash", append([]string{script}, addresses...)...).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}
