package compat

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// Scenarios mostly wait for pushes and for each other, so more of them than cores can run; but SDKs
// give up a call after three seconds, which is soon on a machine that is busy starting JVMs. Those
// of SDKs that ask every ten seconds do nothing else than wait.
var (
	pushed   = make(chan struct{}, 6)
	polling  = make(chan struct{}, 30)
	starting = make(chan struct{}, 3) // of drivers
	building sync.Mutex               // a build uses the whole machine
)

// parallel is more than all that are limited by the above.
const parallel = "100"

// results is what the report shows; absent is what the end of the run complains about.
var (
	results report
	absent  missingTools
)

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", parallel)
	}
	code := m.Run()
	// Last, where it is seen, whatever the scenarios printed.
	fmt.Print(absent.advice())
	if path := os.Getenv("COMPAT_REPORT"); path != "" {
		var err error
		switch {
		case results.complete():
			err = results.write(path)
		case code == 0: // else it is clear that they do not agree
			err = results.check(path)
		}
		if err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestSDKs runs every scenario by every SDK.
func TestSDKs(t *testing.T) {
	t.Parallel()
	selected := selectedSDKs(t)
	bin := serverBinary(t)
	dir := runDir(t)
	srv := startServer(t, bin, filepath.Join(dir, "server"))
	for _, sdk := range selected {
		t.Run(sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			t.Parallel()
			runScenarios(t, sdk, srv, filepath.Join(dir, sdk.Name))
		})
	}
}

func runScenarios(t *testing.T, sdk *sdk, srv *server, dir string) {
	d, err := startDriver(sdk, filepath.Join(dir, "shared"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if d.Version != sdk.Version {
		t.Fatalf("the driver runs version %s of the SDK, want %s", d.Version, sdk.Version)
	}
	if want := slices.Sorted(maps.Keys(sdk.lacks)); !slices.Equal(slices.Sorted(slices.Values(d.Lacks)), want) {
		t.Fatalf("the driver says that the SDK lacks %v, want %v", d.Lacks, want)
	}
	slots := pushed
	if sdk.Polls > 0 {
		slots = polling
	}
	for _, sc := range scenarios {
		cell, reason := sdk.excuse(sc)
		if cell != "" {
			results.record(sdk, sc.name, cell)
		}
		if sc.run == nil {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			if cell != "" {
				t.Skip(cell+":", reason)
			}
			t.Parallel()
			slots <- struct{}{}
			t.Cleanup(func() { <-slots })
			t.Cleanup(func() {
				cell := passes
				if t.Failed() {
					cell = fails
				}
				results.record(sdk, sc.name, cell)
			})
			sc.run(&scene{t: t, sdk: sdk, server: srv, driver: d, dir: filepath.Join(dir, slug(sc.name))})
		})
	}
}

// TestDriverWithoutServer makes sure that a driver reports a failed connection as a failure, soon,
// and lives on: otherwise a broken server would look like a broken suite.
func TestDriverWithoutServer(t *testing.T) {
	t.Parallel()
	dir := runDir(t)
	for _, sdk := range append(selectedSDKs(t), bare()...) {
		t.Run(sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			t.Parallel()
			d, err := startDriver(sdk, filepath.Join(dir, sdk.Name))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			for range 2 {
				_, err := d.Call(request{Op: "connect", Client: "client", Server: "127.0.0.1:1", TimeoutMs: 500})
				if err == nil || !strings.Contains(err.Error(), "not connected to 127.0.0.1:1") {
					t.Errorf("connecting to no server gave %v", err)
				}
			}
			if _, err := d.Call(request{Op: "list", Client: "client", Service: "order"}); err == nil {
				t.Error("listing without a connection succeeded")
			}
		})
	}
}

// prepare builds the SDK's driver, or skips the test when this machine lacks what that needs. In CI
// a lack is a failure, because there a skipped SDK would go unnoticed.
func prepare(t *testing.T, sdk *sdk) {
	t.Helper()
	if missing := sdk.Missing(); len(missing) > 0 {
		lacks(t, sdk.Name, missing)
	}
	building.Lock()
	defer building.Unlock()
	if err := sdk.Build(); err != nil {
		t.Fatal(err)
	}
}

// lacks ends the test for lack of tools.
func lacks(t *testing.T, what string, missing []drivers.Tool) {
	t.Helper()
	absent.add(what, missing)
	if os.Getenv("CI") == "true" {
		t.Fatal("the machine lacks", programs(missing))
	}
	t.Skip("the machine lacks", programs(missing))
}

// selectedSDKs are those that COMPAT_SDKS names.
func selectedSDKs(t testing.TB) []*sdk {
	t.Helper()
	all := sdks()
	var list []*sdk
	filter := os.Getenv("COMPAT_SDKS")
	switch filter {
	case "all":
		return all
	case "", "newest":
		for _, s := range all {
			if !s.fullRun {
				list = append(list, s)
			}
		}
		return list
	}
	for name := range strings.SplitSeq(filter, ",") {
		i := slices.IndexFunc(all, func(s *sdk) bool { return s.Name == strings.TrimSpace(name) })
		if i < 0 {
			var names []string
			for _, s := range all {
				names = append(names, s.Name)
			}
			t.Fatalf("COMPAT_SDKS names %q; there are newest, all, %s", name, strings.Join(names, ", "))
		}
		list = append(list, all[i])
	}
	return list
}

func serverBinary(t testing.TB) string {
	t.Helper()
	bin := os.Getenv("STARLING_BIN")
	if bin == "" {
		bin = "../../bin/starling"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("no server to test (%v): make build, or set STARLING_BIN", err)
	}
	return bin
}

// runDir is where a test's processes write. It outlives the test if that fails.
func runDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "starling-compat-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("logs of the server and the SDKs:", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return dir
}

// slug makes a name fit for files and services out of one for people.
func slug(name string) string {
	name = strings.TrimPrefix(name, "TestSDKs/")
	return strings.ToLower(strings.NewReplacer("/", ".", " ", "-", "_", "-", ",", "").Replace(name))
}

// missingTools collects what SDKs and scripts could not run for.
type missingTools struct {
	mu    sync.Mutex
	what  []string // SDKs, mostly
	tools []drivers.Tool
}

func (m *missingTools) add(what string, tools []drivers.Tool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.what, what) {
		m.what = append(m.what, what)
	}
	for _, t := range tools {
		if !slices.ContainsFunc(m.tools, func(o drivers.Tool) bool { return o.Program == t.Program }) {
			m.tools = append(m.tools, t)
		}
	}
}

// advice names what is missing and the Debian command that installs it.
func (m *missingTools) advice() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.tools) == 0 {
		return ""
	}
	var pkgs []string
	for _, t := range m.tools {
		pkgs = append(pkgs, t.Package)
	}
	slices.Sort(pkgs)
	return fmt.Sprintf("not run for lack of %s: %s\n\tsudo apt-get install %s\n",
		programs(m.tools), strings.Join(m.what, ", "), strings.Join(slices.Compact(pkgs), " "))
}

func programs(tools []drivers.Tool) string {
	var names []string
	for _, t := range tools {
		names = append(names, t.Program)
	}
	return strings.Join(names, ", ")
}
