package check

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	compose "github.com/compose-spec/compose-go/v2/types"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const plainDir = "../kubernetes"

// plainHead begins the plain manifests.
const plainHead = `# What the Helm chart renders with values.yaml beside this file, without the labels of
# Helm: "make deploy-manifests" writes it. The secret is not in it (deploy/README.md).
`

// plain are the manifests for those who do without Helm.
func plain(t *testing.T) string {
	t.Helper()
	values, err := os.ReadFile(plainDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	stream, _, err := render(t, string(values), newCluster(), false)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(plainHead)
	for doc := range strings.SplitSeq(stream, "---\n") {
		if doc == "" || strings.Contains(doc, "helm.sh/hook") {
			continue
		}
		b.WriteString("---\n")
		for line := range strings.Lines(doc) {
			switch s := strings.TrimSpace(line); {
			case strings.HasPrefix(s, "helm.sh/chart:"), strings.HasPrefix(s, "app.kubernetes.io/managed-by:"),
				strings.HasPrefix(s, "namespace:"): // kustomize's or kubectl's
			case s == "# Source:":
			default:
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

func TestPlainManifests(t *testing.T) {
	want := plain(t)
	if *update {
		if err := os.WriteFile(plainDir+"/starling.yaml", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(plainDir + "/starling.yaml")
	if err != nil || string(got) != want {
		t.Errorf("deploy/kubernetes/starling.yaml is not what the chart renders (%v): make deploy-manifests", err)
	}
	o := decode(t, kustomized(t))
	s := get[*apps.StatefulSet](t, o, "starling")
	checkPods(t, s)
	checkSettings(t, containerOf(t, s, "starling-0", "10.1.2.3"))
	if peers := get[*core.Service](t, o, "starling-peers"); peers.Name != argument(t, s.Spec.Template.Spec.Containers[0].Args, "--join=") {
		t.Errorf("nodes look for each other elsewhere than at %s", peers.Name)
	}
	for key := range o {
		if strings.HasPrefix(key, "Secret") {
			t.Errorf("%s: a secret that is published is none", key)
		}
	}
}

// kustomized is "kubectl kustomize deploy/kubernetes".
func kustomized(t *testing.T) string {
	t.Helper()
	r, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), plainDir)
	if err != nil {
		t.Fatal(err)
	}
	y, err := r.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	if kubectl, err := exec.LookPath("kubectl"); err == nil {
		out, err := exec.Command(kubectl, "kustomize", plainDir).CombinedOutput()
		if err != nil {
			t.Errorf("kubectl kustomize: %v\n%s", err, out)
		} else if !reflect.DeepEqual(decode(t, string(out)), decode(t, string(y))) {
			t.Error("kubectl makes something else of it than the library does")
		}
	} else {
		t.Log("there is no kubectl: only the library was tried")
	}
	return string(y)
}

func composeProject(t *testing.T, env ...string) *compose.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithEnv(env))
	if err != nil {
		t.Fatal(err)
	}
	// It checks the schema, the variables and what refers to what.
	p, err := opts.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCompose(t *testing.T) {
	i := readImage(t)
	p := composeProject(t)
	if len(p.Services) != 3 {
		t.Errorf("%d services", len(p.Services))
	}
	published := map[string]bool{}
	for name, s := range p.Services {
		if s.Image != "starling" || filepath.Base(s.Build.Dockerfile) != "Dockerfile" {
			t.Errorf("%s: image %s, built from %+v", name, s.Image, s.Build)
		}
		if abs, _ := filepath.Abs(root); s.Build.Context != abs {
			t.Errorf("%s is built in %s", name, s.Build.Context)
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.Privileged || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
			t.Errorf("%s may do more than it must", name)
		}
		if s.HealthCheck != nil {
			t.Errorf("%s has a health check beside that of the image", name)
		}
		if s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) < 30*time.Second {
			t.Errorf("%s is killed while it drains: %v", name, s.StopGracePeriod)
		}
		if len(s.Volumes) != 1 || s.Volumes[0].Target != i.env["STARLING_DATA_DIR"] || s.Volumes[0].Source != name {
			t.Errorf("%s: volumes %+v", name, s.Volumes)
		}
		c := i.container(s.Command, nil)
		if key := argument(t, c.args, "--gossip-key-file="); len(s.Secrets) != 1 || key != "/run/secrets/"+s.Secrets[0].Source {
			t.Errorf("%s: the secret is not at %s", name, key)
		}
		if join := argument(t, c.args, "--join="); !slices.Contains(s.Networks["nodes"].Aliases, join) {
			t.Errorf("%s is not called %s", name, join)
		}
		// One that began alone could begin a cluster of its own.
		wantLine(t, checkSettings(t, c), "expect: "+strconv.Itoa(len(p.Services))+" # flag")
		if len(s.Ports) != 2 || s.Ports[0].Target != 8848 || s.Ports[1].Target != 9848 || s.Ports[1].Published != plus1000(t, s.Ports[0].Published) {
			t.Errorf("%s: ports %+v: gRPC must be published 1000 above HTTP", name, s.Ports)
		}
		for _, port := range s.Ports {
			if published[port.Published] {
				t.Errorf("port %s is there twice", port.Published)
			}
			published[port.Published] = true
		}
	}
	// What the comments name.
	other := composeProject(t, "STARLING_IMAGE=registry.example.org/starling:v1", "STARLING_KEY_FILE=/etc/key", "STARLING_VERSION=v1")
	if s := other.Services["node-1"]; s.Image != "registry.example.org/starling:v1" || *s.Build.Args["VERSION"] != "v1" || other.Secrets["gossip-key"].File != "/etc/key" {
		t.Errorf("the variables are not used: %+v", s)
	}
}
