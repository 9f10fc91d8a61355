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
	// notes say, for a scenario, what the SDK cannot do and what its driver does instead.
	notes map[string]string
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
	pythonTool = tool{program: "python3", pkg: "python3-venv", works: []string{"-c", "import venv, ensurepip"}}
)

// sdks are the SDKs in the order of the report's columns.
func sdks() []*sdk {
	return []*sdk{goSDK(), javaSDK("java2", "2.5.1"), javaSDK("java3", "3.1.1"), pythonSDK()}
}

// buildDir holds everything that the suite builds and fetches.
const buildDir = "build"

func goSDK() *sdk {
	const source = "drivers/go"
	binary := absolute(buildDir, "driver-go")
	return &sdk{
		name:    "go",
		title:   "Go: nacos-sdk-go",
		version: versionIn(filepath.Join(source, "go.mod"), `nacos-sdk-go/v2 (v\S+)`),
		tools:   []tool{goTool},
		build: func() error {
			build := exec.Command("go", "build", "-o", binary, ".")
			build.Dir = source
			// The driver's own module decides what the SDK is linked with.
			build.Env = append(os.Environ(), "GOWORK=off")
			return run(build)
		},
		command: func(dir string) *exec.Cmd { return exec.Command(binary, "-dir", dir) },
		notes: map[string]string{
			batchRegister: "the SDK has no call that removes members of a batch; the remaining instances are registered as a new batch, which replaces it",
		},
	}
}

func javaSDK(name, version string) *sdk {
	const source = "drivers/java"
	target := absolute(buildDir, "java-"+version)
	return &sdk{
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
	}
}

func pythonSDK() *sdk {
	const source = "drivers/python"
	venv := absolute(buildDir, "venv")
	python := filepath.Join(venv, "bin", "python")
	requirements := filepath.Join(source, "requirements.txt")
	return &sdk{
		name:    "python",
		title:   "Python: nacos-sdk-python",
		version: versionIn(requirements, `nacos-sdk-python==(\S+)`),
		tools:   []tool{pythonTool},
		build: func() error {
			return buildOnce(venv, []string{requirements}, func() error {
				if err := run(exec.Command("python3", "-m", "venv", "--clear", venv)); err != nil {
					return err
				}
				return run(exec.Command(python, "-m", "pip", "install", "--quiet", "--requirement", requirements))
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
		},
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
	content, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(content)
	if m == nil {
		panic(fmt.Sprintf("%s names no version matching %s", file, pattern))
	}
	return string(m[1])
}

// absolute is for paths that are used by processes with another working directory.
func absolute(elements ...string) string {
	path, err := filepath.Abs(filepath.Join(elements...))
	if err != nil {
		panic(err)
	}
	return path
}
