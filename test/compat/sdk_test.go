package compat

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// An sdk is one SDK in one version, and how to build and start its driver.
type sdk struct {
	name    string // in COMPAT_SDKS, in sub-tests and in service names
	title   string // in the report
	version string // that is built; the driver must report the same
	tools   []tool
	build   func() error
	// command starts the driver, with everything the SDK writes below dir.
	command func(dir string) *exec.Cmd
	// redo is the longest pause the SDK makes, once connected again, before it repeats its
	// registrations and subscriptions.
	redo time.Duration
	// polls is the longest pause between two questions of an SDK that asks for changes instead of
	// being told.
	polls time.Duration
	// notes say, for a scenario, what the SDK cannot do and what its driver does instead.
	notes map[string]string
	// lacks says why the SDK does not have an operation. Its driver finds out too that it has not.
	lacks map[string]string
	// cannot says why a scenario is out of reach of the SDK although it has the operations.
	cannot map[string]string
	// fullRun keeps an SDK out of the short run, that of the newest versions.
	fullRun bool
}

// excuse says what the report shows for a scenario that is not run, and why not.
func (s *sdk) excuse(sc scenario) (cell, reason string) {
	if reason := s.lacks[sc.needs]; reason != "" {
		return notOffered, reason
	}
	if reason := s.cannot[sc.name]; reason != "" {
		return notPossible, reason
	}
	return "", ""
}

// A tool is a program that a driver needs, with the Debian package that has it.
type tool struct {
	program string
	pkg     string
	// works proves the program usable where finding it is not enough.
	works []string
}

var (
	goTool    = tool{program: "go", pkg: "golang"}
	javaTools = []tool{
		{program: "java", pkg: "openjdk-17-jdk-headless"},
		{program: "javac", pkg: "openjdk-17-jdk-headless"},
		{program: "mvn", pkg: "maven"},
	}
	// Debian splits the module that makes virtual environments from Python itself.
	nodeTools  = []tool{{program: "node", pkg: "nodejs"}, {program: "npm", pkg: "npm"}}
	pythonTool = tool{program: "python3", pkg: "python3-venv", works: []string{"-c", "import venv, ensurepip"}}
)

// sdks are the SDKs in the order of the report's columns: of each the newest version that could be
// fetched when the list was written, then older ones.
func sdks() []*sdk {
	return []*sdk{
		goSDK("go", versionIn("drivers/go/go.mod", `nacos-sdk-go/v2 (v\S+)`)),
		older(goSDK("go-2.2.7", "v2.2.7")),
		older(goSDK("go-2.2.2", "v2.2.2")),
		javaSDK("java3", "3.1.1"),
		javaSDK("java2", "2.5.1"),
		older(javaSDK("java-2.2.4", "2.2.4")),
		older(javaSDK("java-2.0.4", "2.0.4")),
		pythonSDK("python", "3.2.0"),
		older(pythonSDK("python-2.0.11", "2.0.11")),
		nodeSDK("node", versionIn("drivers/node/package.json", `"nacos": "(\S+)"`)),
	}
}

func older(s *sdk) *sdk { s.fullRun = true; return s }

const noWatch = "the SDK has no fuzzy watch"

// buildDir holds everything that the suite builds and fetches.
const buildDir = "build"

func goSDK(name, version string) *sdk {
	const source = "drivers/go"
	binary := absolute(buildDir, "driver-go-"+version)
	return &sdk{
		name:    name,
		title:   "Go: nacos-sdk-go",
		version: version,
		tools:   []tool{goTool},
		build: func() error {
			dir := source
			if !strings.Contains(readFile(source, "go.mod"), "nacos-sdk-go/v2 "+version+"\n") {
				dir = absolute(buildDir, "go-"+version)
				if err := buildOnce(dir, []string{source}, func() error { return goModule(dir, source, version) }); err != nil {
					return err
				}
			}
			return goRun(dir, "build", "-o", binary, ".")
		},
		command: func(dir string) *exec.Cmd { return exec.Command(binary, "-dir", dir) },
		notes: map[string]string{
			batchRegister: "the SDK has no call that removes members of a batch; the remaining instances are registered as a new batch, which replaces it",
		},
		lacks: map[string]string{"watchServices": noWatch},
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

func javaSDK(name, version string) *sdk {
	const source = "drivers/java"
	target := absolute(buildDir, "java-"+version)
	s := &sdk{
		name:    name,
		title:   "Java: nacos-client",
		version: version,
		tools:   javaTools,
		build: func() error {
			return buildOnce(target, []string{source}, func() error {
				return run(exec.Command("mvn", "--quiet", "--batch-mode", "--file", source,
					"-Dnacos.version="+version, "-Dtarget.dir="+target, "package"))
			})
		},
		command: func(dir string) *exec.Cmd {
			return exec.Command("java",
				// Many JVMs share the machine; none of them needs much.
				"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
				"-Duser.home="+dir, "-DJM.LOG.PATH="+filepath.Join(dir, "log"),
				"-DJM.SNAPSHOT.PATH="+filepath.Join(dir, "cache"),
				"-jar", filepath.Join(target, "driver.jar"))
		},
		redo: 3 * time.Second,
		notes: map[string]string{
			metadataChange: "the naming client has no update call; registering the instance again changes it",
		},
		lacks: map[string]string{},
	}
	if version < "3" {
		s.lacks["watchServices"] = "the SDK has no fuzzy watch before 3.0"
	} else {
		s.notes[watchGroup] = "the SDK's calls for all services of a group, `fuzzyWatch(group, …)`, report the services that are there and then nothing more: they ask for the names `.*`, which the SDK itself takes for those that begin with a dot when a change comes; the driver asks for `*`"
		s.notes[watchRestarted] = "of a comparison after a reconnect the SDK applies what came and ignores what went, so that a service that went while the server was away is not missed"
	}
	if version < "2.1" {
		s.cannot = map[string]string{
			subscribe:  "the SDK has group and service the wrong way round when it unsubscribes, so that it goes on being told of changes, and then does not call a listener that is added again",
			namespaces: "the SDK calls a listener for what any client of the process hears, of whatever namespace",
		}
	}
	if version < "2.1.1" {
		s.lacks["batchRegister"] = "the SDK has no batch registration before 2.1.1"
		s.lacks["batchRemove"] = s.lacks["batchRegister"]
	}
	return s
}

func pythonSDK(name, version string) *sdk {
	const source = "drivers/python"
	venv := absolute(buildDir, "venv-"+version)
	python := filepath.Join(venv, "bin", "python")
	s := &sdk{
		name:    name,
		title:   "Python: nacos-sdk-python",
		version: version,
		tools:   []tool{pythonTool},
		build: func() error {
			return buildOnce(venv, nil, func() error {
				if err := run(exec.Command("python3", "-m", "venv", "--clear", venv)); err != nil {
					return err
				}
				return run(exec.Command(python, "-m", "pip", "install", "--quiet", "nacos-sdk-python=="+version))
			})
		},
		command: func(dir string) *exec.Cmd {
			return exec.Command(python, filepath.Join(source, "driver.py"), dir)
		},
		redo: 30 * time.Second,
		notes: map[string]string{
			selectHealthy:   "the SDK has no call that picks one instance; the driver takes one of its list of healthy instances",
			serverRestarted: redoNote,
			serverKilled:    redoNote,
			batchRestarted:  redoNote,
		},
		lacks: map[string]string{"watchServices": noWatch},
	}
	if version < "3" {
		const blind = "the SDK does not notice that the server was away for less than five seconds, the pause between its health checks, which take the answer that the server does not know the connection for a good one; it connects again with its next request"
		s.cannot = map[string]string{serverRestarted: blind, serverKilled: blind, batchRestarted: blind}
	}
	return s
}

// The Node.js SDK takes part in the full run only: it asks for changes every ten seconds, and CI
// would need Node.js.
func nodeSDK(name, version string) *sdk {
	const source = "drivers/node"
	dir := absolute(buildDir, "node-"+version)
	return &sdk{
		name:    name,
		title:   "Node.js (HTTP 1.x): nacos",
		version: version,
		tools:   nodeTools,
		build: func() error {
			return buildOnce(dir, []string{source}, func() error {
				if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
					return err
				}
				return run(exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", dir))
			})
		},
		command: func(string) *exec.Cmd { return exec.Command("node", filepath.Join(dir, "driver.js")) },
		redo:    10 * time.Second, // the pause before the first beat; five seconds between the others
		polls:   10 * time.Second,
		notes: map[string]string{
			metadataChange: "the SDK has no update call; registering the instance again changes it",
		},
		lacks: map[string]string{
			"batchRegister": "the SDK has no batch registration",
			"batchRemove":   "the SDK has no batch registration",
			"services":      "the SDK has no call that lists services",
			"watchServices": noWatch,
		},
		cannot: map[string]string{
			deregister:     "the SDK passes over an empty list, so it keeps the last instance of a service",
			selectHealthy:  "the SDK registers no instance as unhealthy or with weight 0: a beat makes it healthy, and 0 becomes 1",
			providerKilled: "the SDK has no connection that could end; its instances become unhealthy 15 seconds after the last beat and go after 30",
		},
		fullRun: true,
	}
}

const redoNote = "the SDK repeats registrations and subscriptions only every 30 seconds, so instances come back up to half a minute after the server"

// missing returns the tools of the SDK that this machine lacks.
func (s *sdk) missing() []tool {
	var list []tool
	for _, t := range s.tools {
		_, err := exec.LookPath(t.program)
		if err == nil && t.works != nil {
			err = exec.Command(t.program, t.works...).Run()
		}
		if err != nil {
			list = append(list, t)
		}
	}
	return list
}

// buildOnce builds into dir unless it holds a complete build of the same inputs, which are files
// and folders.
func buildOnce(dir string, inputs []string, build func() error) error {
	sum := sha256.New()
	for _, input := range inputs {
		err := filepath.WalkDir(input, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
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
// once. The suite starts in its own folder, where the file always is.
func versionIn(file, pattern string) string {
	m := regexp.MustCompile(pattern).FindStringSubmatch(readFile(file))
	if m == nil {
		panic(fmt.Sprintf("%s names no version matching %s", file, pattern))
	}
	return m[1]
}

// readFile is for files of the suite itself.
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
