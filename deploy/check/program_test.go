package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// root is where the repository is.
const root = "../.."

// binary is the program that is checked: that of STARLING_BIN, or what "make
// build" made.
func binary(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("STARLING_BIN")
	if bin == "" {
		bin = root + "/bin/starling"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("there is no program to check the settings with, run make build: %v", err)
	}
	return bin
}

// A container is what a manifest says to run: arguments after the entry point,
// and the variables that the image does not have.
type container struct {
	args []string
	env  map[string]string
}

// expand replaces $(NAME) in the arguments, as Kubernetes does.
func (c container) expand() []string {
	var args []string
	for _, a := range c.args {
		for name, value := range c.env {
			a = strings.ReplaceAll(a, "$("+name+")", value)
		}
		args = append(args, a)
	}
	return args
}

// checkSettings lets the program say what it would run with: a flag that it does not
// have, or a value that it does not take, is an error. It returns that.
func checkSettings(t *testing.T, c container) string {
	t.Helper()
	args := append(c.expand(), "--check")
	for _, a := range args {
		if strings.Contains(a, "$(") {
			t.Errorf("%s refers to a variable that is not there", a)
		}
	}
	cmd := exec.Command(binary(t), args...)
	cmd.Env = []string{} // not this process's
	for name, value := range c.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, stderr.Bytes())
	} else if stderr.Len() > 0 {
		t.Errorf("%s: %s", strings.Join(cmd.Args, " "), stderr.Bytes())
	}
	return stdout.String()
}

// wantLine checks that a line of "serve --check" begins so.
func wantLine(t *testing.T, out, begin string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, begin) {
			return
		}
	}
	t.Errorf("no line begins with %q in\n%s", begin, out)
}

// plus1000 is where an SDK looks for gRPC.
func plus1000(t *testing.T, port string) string {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(n + 1000)
}
