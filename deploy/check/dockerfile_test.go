package check

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// An image is what the last stage of deploy/Dockerfile describes.
type image struct {
	stages     []instructions.Stage
	env        map[string]string
	user       string
	entrypoint []string
	cmd        []string
	health     []string // after CMD
	copies     []imageCopy
	workdir    string
	volumes    []string
	exposed    []string
	stopSignal string
	labels     map[string]string
	from       string
}

// An imageCopy is something of the stage that builds.
type imageCopy struct {
	from, to string
	owner    string // "": root
}

func readImage(t *testing.T) image {
	t.Helper()
	b, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	result, err := parser.Parse(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range result.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	stages, _, err := instructions.Parse(result.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	i := image{stages: stages, env: map[string]string{}, labels: map[string]string{}, from: last.BaseName}
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.ArgCommand:
		case *instructions.EnvCommand:
			for _, kv := range c.Env {
				i.env[kv.Key] = kv.Value
			}
		case *instructions.LabelCommand:
			for _, kv := range c.Labels {
				i.labels[kv.Key] = kv.Value
			}
		case *instructions.CopyCommand:
			if c.From != stages[0].Name || len(c.SourcePaths) != 1 {
				t.Errorf("%s does not copy one thing from the stage that builds", c)
				continue
			}
			i.copies = append(i.copies, imageCopy{c.SourcePaths[0], c.DestPath, c.Chown})
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.WorkdirCommand:
			i.workdir = c.Path
		case *instructions.VolumeCommand:
			i.volumes = append(i.volumes, c.Volumes...)
		case *instructions.ExposeCommand:
			i.exposed = append(i.exposed, c.Ports...)
		case *instructions.StopSignalCommand:
			i.stopSignal = c.Signal
		case *instructions.HealthCheckCommand:
			if len(c.Health.Test) < 2 || c.Health.Test[0] != "CMD" {
				t.Errorf("the health check needs a shell: %q", c.Health.Test)
				continue
			}
			i.health = c.Health.Test[1:]
		case *instructions.EntrypointCommand:
			i.entrypoint = []string(c.CmdLine)
			if c.PrependShell {
				t.Error("the entry point needs a shell")
			}
		case *instructions.CmdCommand:
			i.cmd = []string(c.CmdLine)
			if c.PrependShell {
				t.Error("the command needs a shell")
			}
		default: // RUN needs a shell too; anything else is to be looked at
			t.Errorf("instruction %s is not expected in the last stage", c.Name())
		}
	}
	return i
}

// imageUser is the number that the processes of the image have.
func imageUser(t *testing.T) int64 {
	t.Helper()
	user, group, _ := strings.Cut(readImage(t).user, ":")
	n, err := strconv.ParseInt(user, 10, 64)
	if err != nil || n == 0 || group != user {
		t.Fatalf("USER %s:%s is not a number twice, or root", user, group)
	}
	return n
}

// container is what the image runs with args after the entry point (nil: its CMD) and
// variables beside its own.
func (i image) container(args []string, env map[string]string) container {
	if args == nil {
		args = i.cmd
	}
	c := container{args, maps.Clone(i.env)}
	maps.Copy(c.env, env)
	return c
}

func TestDockerfile(t *testing.T) {
	i := readImage(t)
	imageUser(t)
	owner := i.user
	if i.from != "scratch" || len(i.stages) != 2 {
		t.Errorf("%d stages, the last from %s", len(i.stages), i.from)
	}
	const program, data = "/usr/local/bin/starling", "/var/lib/starling"
	if !slices.Equal(i.entrypoint, []string{program}) || len(i.health) < 2 || i.health[0] != program {
		t.Errorf("entry point %q, health check %q", i.entrypoint, i.health)
	}
	if i.stopSignal != "SIGTERM" || !slices.Equal(i.volumes, []string{data}) || i.workdir != data {
		t.Errorf("stop signal %s, volumes %q, directory %s", i.stopSignal, i.volumes, i.workdir)
	}
	// A volume gets the owner of what it is mounted over.
	if !slices.Contains(i.copies, imageCopy{"/empty", data, owner}) || !slices.Contains(i.copies, imageCopy{"/src/bin/starling", program, ""}) {
		t.Errorf("copies %q", i.copies)
	}
	for _, key := range []string{"title", "description", "licenses", "version"} {
		if i.labels["org.opencontainers.image."+key] == "" {
			t.Errorf("there is no label %s", key)
		}
	}

	// It builds as everybody does.
	var runs []string
	for _, c := range i.stages[0].Commands {
		if r, ok := c.(*instructions.RunCommand); ok {
			runs = append(runs, strings.Join(r.CmdLine, " "))
		}
	}
	if want := []string{"go mod download", "GOOS=$TARGETOS GOARCH=$TARGETARCH make build VERSION=$VERSION && mkdir /empty"}; !slices.Equal(runs, want) {
		t.Errorf("the stage that builds runs %q; if that is right, let makeRoot (chroot_test.go) do the same", runs)
	}

	out := checkSettings(t, i.container(nil, nil))
	wantLine(t, out, "bind: 0.0.0.0 # STARLING_BIND")
	wantLine(t, out, "data-dir: "+data+" # STARLING_DATA_DIR")
	// The ports are those of the program, and all of them.
	ports := []string{}
	for line := range strings.Lines(out) {
		if name, rest, _ := strings.Cut(line, ": "); name == "port" || strings.HasSuffix(name, "-port") {
			port, _, _ := strings.Cut(rest, " ")
			ports = append(ports, port+"/tcp")
			if name == "gossip-port" {
				ports = append(ports, port+"/udp")
			}
		}
	}
	slices.Sort(ports)
	if got := slices.Sorted(slices.Values(i.exposed)); !slices.Equal(got, ports) {
		t.Errorf("EXPOSE %q, the program has %q", got, ports)
	}
	// The base image has the Go that go.mod asks for.
	mod, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(string(mod), "\ngo ")
	version, _, _ = strings.Cut(version, "\n")
	parts := strings.SplitN(version, ".", 3)
	if base := "golang:" + parts[0] + "." + parts[1] + "-"; !strings.HasPrefix(i.stages[0].BaseName, base) {
		t.Errorf("built with %s, go.mod has %s", i.stages[0].BaseName, version)
	}
}

// What is sent to Docker is what the program is built from: nothing is missing, and
// neither data nor secrets nor history go along.
func TestDockerignore(t *testing.T) {
	sent := dockerignore(t)
	for _, file := range []string{"starling.key", "starling-data/node-id", "starling-data/raft/log", ".git/config", "bin/starling", "deploy/starling.key", "test/golden/go.mod", "pkg/node/node_test.go", ".env"} {
		if sent(file) {
			t.Errorf("%s is sent", file)
		}
	}

	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "-tags", "grpcnotrace", "-deps", "-f", `{{if not .Standard}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}`, "./cmd/starling")
	list.Dir, list.Stderr = abs, os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	needed := append(strings.Fields(string(out)), abs+"/Makefile", abs+"/go.mod", abs+"/go.sum", abs+"/LICENSE", abs+"/cmd/starling/default.pgo")
	if len(needed) < 100 {
		t.Fatalf("the program is built from %d files only?", len(needed))
	}
	for _, file := range needed {
		if rel := strings.TrimPrefix(file, abs+"/"); !sent(rel) {
			t.Errorf("%s is not sent", rel)
		}
	}
}

// TestBuildStage does what the stage that builds does, with what is sent to it and
// nothing else, but with the Go of this machine.
func TestBuildStage(t *testing.T) {
	sent := sentToDocker(t)
	src := t.TempDir()
	for _, file := range sent {
		to := filepath.Join(src, file)
		b, err := os.ReadFile(filepath.Join(root, file))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("make", "build", "VERSION=v0.0.0-check")
	build.Dir = src
	// GOOS and GOARCH may be set and empty, where nothing says for which platform.
	build.Env = append(os.Environ(), "GOOS=", "GOARCH=", "MAKEFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(src, "bin/starling"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v0.0.0-check") {
		t.Errorf("%v: %s", err, out)
	}
	f, err := elf.Open(filepath.Join(src, "bin/starling"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 || f.Section(".interp") != nil {
		t.Errorf("it is not static: %q, %v", libs, err)
	}
}

// sentToDocker are the files of the repository that .dockerignore lets through.
func sentToDocker(t *testing.T) []string {
	t.Helper()
	sent := dockerignore(t)
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		switch {
		case err != nil:
		case d.IsDir() && (rel == ".git" || rel == "bin"):
			return fs.SkipDir
		case d.Type().IsRegular() && sent(rel):
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// dockerignore tells whether a file is sent.
func dockerignore(t *testing.T) func(file string) bool {
	t.Helper()
	f, err := os.Open(root + "/.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	patterns, err := ignorefile.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return func(file string) bool {
		ignored, err := m.MatchesOrParentMatches(file)
		if err != nil {
			t.Fatal(err)
		}
		return !ignored
	}
}
