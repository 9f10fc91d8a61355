// Command mutants breaks the code on purpose, in a copy of the tree, and runs
// the simulation on it: each break must be noticed, or, where the design has a
// second way, make no difference.
//
//	go run ./test/sim/mutants [-only NAME] [-list] [-v]
//	go run ./test/sim/mutants -only NAME -build FILE
//
// The second form makes a server that is broken like that, for whoever wants to
// see whether another test would notice.
//
// A mutant is a change of text, see mutants.go. One whose text is no longer
// there fails too: then the code has moved on and the mutant must follow.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A change replaces text of a file, which must stand there exactly once.
type change struct{ file, old, new string }

// A mutant is a change of the code and what must come of it.
type mutant struct {
	name    string
	why     string // what is broken
	changes []change
	pkg     string   // whose tests; "": ./test/sim
	run     string   // tests that are run, as of go test -run
	args    []string // of the test
	// caught: promises, any of which must be broken; none: all must hold.
	caught []string
}

func main() {
	only := flag.String("only", "", "run the mutants whose names match this `regexp`")
	list := flag.Bool("list", false, "list the mutants")
	verbose := flag.Bool("v", false, "show what the tests say")
	build := flag.String("build", "", "build the server with the one mutant that matches into this `file`, and run nothing")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if *build != "" {
		if err := buildServer(match, *build); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	failed := 0
	for _, m := range mutants {
		if !match.MatchString(m.name) {
			continue
		}
		if *list {
			fmt.Printf("%-24s %s\n", m.name, m.why)
			continue
		}
		start := time.Now()
		result, output, err := m.try()
		if *verbose {
			fmt.Println(output)
		}
		if err != nil {
			failed++
			result = err.Error()
		}
		fmt.Printf("%-24s %4.0f s  %s\n", m.name, time.Since(start).Seconds(), result)
	}
	if failed > 0 {
		fmt.Fprintf(os.Stderr, "%d mutants are not as they should be\n", failed)
		os.Exit(1)
	}
}

// broken finds the promises in what a failed test says.
var broken = regexp.MustCompile(`(?m)^ +\[[0-9.]+s\] ([a-z]+): (.*)$`)

// buildServer builds a broken server.
func buildServer(match *regexp.Regexp, file string) error {
	var found []mutant
	for _, m := range mutants {
		if match.MatchString(m.name) {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		return fmt.Errorf("%d mutants match %s, want one; -list names them", len(found), match)
	}
	dir, err := found[0].copy()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if file, err = filepath.Abs(file); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-X main.version=broken", "-o", file, "./cmd/starling")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %q: %w\n%s", found[0].name, err, out)
	}
	fmt.Printf("%s: %s\n", file, found[0].why)
	return nil
}

// copy is a copy of the tree with the mutant's changes, which the caller removes.
func (m mutant) copy() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "mutant"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	if err := copyTree(dir, "."); err != nil {
		return "", err
	}
	for _, c := range m.changes {
		if err := c.apply(dir); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func (m mutant) try() (result, output string, err error) {
	dir, err := m.copy()
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"test", cmp.Or(m.pkg, "./test/sim"), "-count=1", "-timeout=5m", "-run", m.run}
	if m.pkg == "" {
		args = append(args, "-sim.named=1")
	}
	test := exec.CommandContext(ctx, "go", append(args, m.args...)...)
	test.Dir = dir
	out, err := test.CombinedOutput()
	output = string(out)
	found := broken.FindAllStringSubmatch(output, -1)
	switch exit := (*exec.ExitError)(nil); {
	case err == nil && len(m.caught) == 0:
		return "holds, as it must", output, nil
	case err == nil:
		return "", output, errors.New("NOT CAUGHT: nothing noticed it")
	case !errors.As(err, &exit):
		return "", output, err
	case len(found) == 0:
		return "", output, fmt.Errorf("FAILED, but not by a promise:\n%s", tail(output, 30))
	case len(m.caught) == 0:
		return "", output, fmt.Errorf("BROKEN, it should hold: %s: %s", found[0][1], found[0][2])
	}
	times := map[string]int{}
	for _, f := range found {
		times[f[1]]++
	}
	for _, f := range found {
		if slices.Contains(m.caught, f[1]) {
			return fmt.Sprintf("caught %d times, %d by %s: %s", len(found), times[f[1]], f[1], f[2]), output, nil
		}
	}
	return "", output, fmt.Errorf("CAUGHT OTHERWISE, not by %v: %s: %s", m.caught, found[0][1], found[0][2])
}

func (c change) apply(dir string) error {
	file := filepath.Join(dir, filepath.FromSlash(c.file))
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(b), c.old); n != 1 {
		return fmt.Errorf("DOES NOT FIT: %s has %d times the text\n%s", c.file, n, c.old)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(b), c.old, c.new, 1)), 0o600)
}

// copyTree copies what the simulation is built from.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name := entry.Name(); path != from && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" || name == "node_modules") {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, path), 0o700)
		case filepath.Ext(path) != ".go" && entry.Name() != "go.mod" && entry.Name() != "go.sum" && !strings.Contains(filepath.ToSlash(path), "pkg/"):
			return nil
		case !entry.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, path), b, 0o600)
	})
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
