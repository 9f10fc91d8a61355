package check

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestShellScripts(t *testing.T) {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("not run for lack of shellcheck; to install: apt-get install shellcheck")
	}
	var scripts []string
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".sh") {
			scripts = append(scripts, path)
		}
		return err
	})
	if err != nil || len(scripts) == 0 {
		t.Fatal(err, "there are no scripts")
	}
	if out, err := exec.Command(shellcheck, append([]string{"--external-sources"}, scripts...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	cmd := exec.Command(shellcheck, "--shell=sh", "-")
	cmd.Stdin = strings.NewReader("set -eu\n" + enter)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("how a pod is entered: %v\n%s", err, out)
	}
}
