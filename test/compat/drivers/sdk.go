package drivers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// An SDK is one SDK in one version, and how to build and start its driver.
type SDK struct {
	Name    string // that the caller has given it
	Title   string // for people
	Version string // that is built; the driver must report the same
	Tools   []Tool
	Build   func() error
	// Command starts the driver, with everything the SDK writes below dir.
	Command func(dir string) *exec.Cmd
	// Redo is the longest pause the SDK makes, once connected again, before it repeats its
	// registrations and subscriptions.
	Redo time.Duration
	// Polls is the longest pause between two questions of an SDK that asks for changes instead of
	// being told.
	Polls time.Duration
}

// A Tool is a program that a driver needs, with the Debian package that has it.
type Tool struct {
	Program string
	Package string
	// works proves the program usable where finding it is not enough.
	works []string
}

var (
	goTool    = Tool{Program: "go", Package: "golang"}
	javaTools = []Tool{
		{Program: "java", Package: "openjdk-17-jdk-headless"},
		{Program: "javac", Package: "openjdk-17-jdk-headless"},
		{Program: "mvn", Package: "maven"},
	}
	// Debian splits the module that makes virtual environments from Python itself.
	nodeTools  = []Tool{{Program: "node", Package: "nodejs"}, {Program: "npm", Package: "npm"}}
	pythonTool = Tool{Program: "python3", Package: "python3-venv", works: []string{"-c", "import venv, ensurepip"}}
)

// The newest versions that could be fetched when this was written. Those of Go and Node.js are in
// the manifests of their drivers.
const (
	Java3   = "3.1.1"
	Java2   = "2.5.1"
	Java1   = "1.4.8"
	Python  = "3.2.0"
	Python1 = "1.0.0"
)

// A Place is the folder of the compatibility suite, which has the sources of the drivers and, below
// build, what is built and fetched.
type Place string

func (p Place) source(language string) string { return absolute(string(p), "drivers", language) }
func (p Place) build(name string) string      { return absolute(string(p), "build", name) }

// NewestGo is the version that the driver's own module requires.
func (p Place) NewestGo() string {
	return versionIn(filepath.Join(p.source("go"), "go.mod"), `nacos-sdk-go/v2 (v\S+)`)
}

// NewestGo1 is the same of version 1, which has a driver of its own.
func (p Place) NewestGo1() string {
	return versionIn(filepath.Join(p.source("go1"), "go.mod"), `nacos-sdk-go (v\S+)`)
}

// NewestNode is the version that the driver's own package requires.
func (p Place) NewestNode() string {
	return versionIn(filepath.Join(p.source("node"), "package.json"), `"nacos": "(\S+)"`)
}

func (p Place) Go(name, version string) *SDK {
	source, binary := p.source("go"), p.build("driver-go-"+version)
	return &SDK{
		Name:    name,
		Title:   "Go: nacos-sdk-go",
		Version: version,
		Tools:   []Tool{goTool},
		Build: func() error {
			dir := source
			if !strings.Contains(readFile(source, "go.mod"), "nacos-sdk-go/v2 "+version+"\n") {
				dir = p.build("go-" + version)
				if err := buildOnce(dir, source, func() error { return goModule(dir, source, version) }); err != nil {
					return err
				}
			}
			return goRun(dir, "build", "-o", binary, ".")
		},
		Command: func(dir string) *exec.Cmd { return exec.Command(binary, "-dir", dir) },
	}
}

// Go1 is version 1 of the Go SDK, a module of another name. It has one version only, that of the driver.
func (p Place) Go1(name, version string) *SDK {
	source, binary := p.source("go1"), p.build("driver-go1-"+version)
	return &SDK{
		Name:    name,
		Title:   "Go 1.x (HTTP): nacos-sdk-go",
		Version: version,
		Tools:   []Tool{goTool},
		Build:   func() error { return goRun(source, "build", "-o", binary, ".") },
		Command: func(dir string) *exec.Cmd { return exec.Command(binary, "-dir", dir) },
		Redo:    5 * time.Second,  // between two beats, each of which registers
		Polls:   11 * time.Second, // once a second it looks whose ten are over
	}
}

// goModule copies the driver into a module that requires another version of the SDK, and nothing
// else, so that the SDK gets the dependencies that it asks for.
func goModule(dir, source, version string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mod := regexp.MustCompile(`(?m)^(module|go) .*$`).FindAllString(readFile(source, "go.mod"), 2)
	mod = append(mod, "require github.com/nacos-group/nacos-sdk-go/v2 "+version)
	for name, content := range map[string]string{"go.mod": strings.Join(mod, "\n"), "main.go": readFile(source, "main.go")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return goRun(dir, "mod", "tidy")
}

func goRun(dir string, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	// The driver's own module decides what the SDK is linked with.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return run(cmd)
}

func (p Place) Java(name, version string) *SDK {
	source, target := p.source("java"), p.build("java-"+version)
	return &SDK{
		Name:    name,
		Title:   "Java: nacos-client",
		Version: version,
		Tools:   javaTools,
		Build: func() error {
			return buildOnce(target, source, func() error {
				return run(exec.Command("mvn", "--quiet", "--batch-mode", "--file", source,
					"-Dnacos.version="+version, "-Dtarget.dir="+target, "package"))
			})
		},
		Command: func(dir string) *exec.Cmd {
			return exec.Command("java",
				// Many JVMs share the machine; none of them needs much.
				"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
				"-Duser.home="+dir, "-DJM.LOG.PATH="+filepath.Join(dir, "log"),
				"-DJM.SNAPSHOT.PATH="+filepath.Join(dir, "cache"),
				"-jar", filepath.Join(target, "driver.jar"))
		},
		Redo: 3 * time.Second,
	}
}

// Java1 is a version of the Java SDK that speaks HTTP. Its driver is that of the others.
func (p Place) Java1(name, version string) *SDK {
	s := p.Java(name, version)
	s.Title = "Java 1.x (HTTP): nacos-client"
	s.Redo = 5 * time.Second // between two beats, whose answer says that it has to register again
	s.Polls = 10 * time.Second
	return s
}

func (p Place) Python(name, version string) *SDK {
	return p.pythonSDK("python", name, version)
}

// Python1 is a version of the Python SDK that speaks HTTP.
func (p Place) Python1(name, version string) *SDK {
	s := p.pythonSDK("python1", name, version)
	s.Title = "Python 1.x (HTTP): nacos-sdk-python"
	s.Redo = 5 * time.Second // between two beats, each of which registers
	s.Polls = 7 * time.Second
	return s
}

func (p Place) pythonSDK(driver, name, version string) *SDK {
	source, venv := p.source(driver), p.build("venv-"+version)
	python := filepath.Join(venv, "bin", "python")
	return &SDK{
		Name:    name,
		Title:   "Python: nacos-sdk-python",
		Version: version,
		Tools:   []Tool{pythonTool},
		Build: func() error {
			return buildOnce(venv, "", func() error {
				if err := run(exec.Command("python3", "-m", "venv", "--clear", venv)); err != nil {
					return err
				}
				return run(exec.Command(python, "-m", "pip", "install", "--quiet", "nacos-sdk-python=="+version))
			})
		},
		Command: func(dir string) *exec.Cmd {
			return exec.Command(python, filepath.Join(source, "driver.py"), dir)
		},
		Redo: 30 * time.Second,
	}
}

func (p Place) Node(name, version string) *SDK {
	source, dir := p.source("node"), p.build("node-"+version)
	return &SDK{
		Name:    name,
		Title:   "Node.js (HTTP 1.x): nacos",
		Version: version,
		Tools:   nodeTools,
		Build: func() error {
			return buildOnce(dir, source, func() error {
				if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
					return err
				}
				return run(exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", dir))
			})
		},
		Command: func(string) *exec.Cmd { return exec.Command("node", filepath.Join(dir, "driver.js")) },
		Redo:    10 * time.Second, // the pause before the first beat; five seconds between the others
		Polls:   10 * time.Second,
	}
}

// HTTP are clients without an SDK, of the HTTP API of Nacos, v1: many in one process, from sources
// that need nothing but Go.
func (p Place) HTTP(name string) *SDK {
	return p.bare(name, &SDK{
		Title:   "HTTP, no SDK: API",
		Version: "v1",
		Redo:    5 * time.Second, // between two beats, whose answer says that it has to register again
		Polls:   10 * time.Second,
	}, "http")
}

// HTTP3 is HTTP with the client API of Nacos 3, for servers that do not offer v1 any more.
func (p Place) HTTP3(name string) *SDK {
	s := p.HTTP(name)
	s.Version = "v3"
	start := s.Command
	s.Command = func(dir string) *exec.Cmd {
		cmd := start(dir)
		cmd.Args = append(cmd.Args, "-api", "v3")
		return cmd
	}
	return s
}

// Starling is Starling's own client for Go, as it is in this tree: many in one process.
func (p Place) Starling(name string) *SDK {
	return p.bare(name, &SDK{
		Title:   "Go: Starling's own client",
		Version: versionIn(absolute(string(p), "../../pkg/client/wire/conn.go"), `"Starling-Go-Client:(v\S+)"`),
		// All is told again at once; what a server refuses then is tried again after a second.
		Redo: time.Second,
	}, "starling")
}

// bare completes what is about a driver of this module.
func (p Place) bare(name string, s *SDK, source string) *SDK {
	binary := p.build("driver-" + source)
	s.Name = name
	s.Tools = []Tool{goTool}
	s.Build = func() error { return goRun(absolute(string(p)), "build", "-o", binary, "./drivers/"+source) }
	s.Command = func(dir string) *exec.Cmd { return exec.Command(binary, "-dir", dir) }
	return s
}

// Missing returns the tools of the SDK that this machine lacks.
func (s *SDK) Missing() []Tool {
	var list []Tool
	for _, t := range s.Tools {
		_, err := exec.LookPath(t.Program)
		if err == nil && t.works != nil {
			err = exec.Command(t.Program, t.works...).Run()
		}
		if err != nil {
			list = append(list, t)
		}
	}
	return list
}

// buildOnce builds into dir unless it holds a complete build of the same source, which is a folder
// or none. Paths do not count: those who share a build folder name the source differently.
func buildOnce(dir, source string, build func() error) error {
	sum := sha256.New()
	if source != "" {
		err := fs.WalkDir(os.DirFS(source), ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(filepath.Join(source, path))
			fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content)
			return err
		})
		if err != nil {
			return err
		}
	}
	key := hex.EncodeToString(sum.Sum(nil))
	stamp := dir + ".built"
	if old, err := os.ReadFile(stamp); err == nil && string(old) == key {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := build(); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(key), 0o644)
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// versionIn reads the SDK's version from where its package manager has it, so that it is written
// once.
func versionIn(file, pattern string) string {
	m := regexp.MustCompile(pattern).FindStringSubmatch(readFile(file))
	if m == nil {
		panic(fmt.Sprintf("%s names no version matching %s", file, pattern))
	}
	return m[1]
}

// readFile is for files of the suite itself, which are always there.
func readFile(elements ...string) string {
	content, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		panic(err)
	}
	return string(content)
}

// absolute is for paths that are used by processes with another working directory.
func absolute(elements ...string) string {
	path, err := filepath.Abs(filepath.Join(elements...))
	if err != nil {
		panic(err)
	}
	return path
}
