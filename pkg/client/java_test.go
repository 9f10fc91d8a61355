package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// C-9 … C-11, F-1, F-3: the Java client reads what this one writes: at its start
// (namingLoadCacheAtStart), and as lists of an operator. STARLING_TEST_JAVA is a
// directory with the jars of nacos-client and what it needs: those of the
// compatibility suite are in test/compat/build/java-*/lib.
func TestJavaReads(t *testing.T) {
	jars := os.Getenv("STARLING_TEST_JAVA")
	if jars == "" {
		t.Skip("STARLING_TEST_JAVA is not set")
	}
	jars = filepath.Join(jars, "*")
	classes := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "javac", "-cp", jars, "-d", classes, "testdata/Lists.java").CombinedOutput(); err != nil {
		t.Fatalf("javac: %v\n%s", err, out)
	}
	lists := make(map[ServiceID]stored)
	for id, instances := range javaLists() {
		lists[id] = stored{instances: instances, lastRefTime: 1700000000000, cacheMillis: 10000}
	}
	read := func(home string) map[ServiceID][]Instance {
		var names []string
		for id := range lists {
			names = append(names, id.String())
		}
		file := filepath.Join(home, "names")
		if err := os.WriteFile(file, []byte(strings.Join(names, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "java", "-Dfile.encoding=UTF-8", "-DJM.SNAPSHOT.PATH="+home, "-DJM.LOG.PATH="+home, "-cp", classes+string(filepath.ListSeparator)+jars, "Lists", "read", file)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("java: %v\n%s", err, out)
		}
		got := make(map[ServiceID][]Instance)
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			if !strings.HasPrefix(s.Text(), "{") {
				continue // of its log
			}
			var line struct {
				Service string
				Hosts   []*foundHost
			}
			if err := json.Unmarshal(s.Bytes(), &line); err != nil {
				t.Fatalf("%s: %v", s.Bytes(), err)
			}
			group, name, _ := strings.Cut(line.Service, "@@")
			got[ServiceID{group, name}] = instancesOf(line.Hosts)
		}
		return got
	}
	want := javaLists()
	compare := func(how string, got map[ServiceID][]Instance) {
		for id := range want {
			if !reflect.DeepEqual(got[id], want[id]) {
				t.Errorf("%s, %s:\n%+v, want\n%+v", how, id, got[id], want[id])
			}
		}
	}

	home := t.TempDir()
	log, _ := newLogbook()
	c := openCache(filepath.Join(home, "nacos"), "", log)
	for id, s := range lists {
		c.put(id, s)
	}
	flush(t, c)
	// Neither what is being written nor what is left of it keeps it from reading.
	if err := os.WriteFile(filepath.Join(c.dir, "new-1"+unfinished), []byte(`{"name":"order","hos`), 0o644); err != nil {
		t.Fatal(err)
	}
	compare("at the start", read(home))

	home = t.TempDir()
	dir := filepath.Join(home, "nacos", "naming", "public", "failover")
	if err := writeSnapshot(dir, lists); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, failoverSwitch), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	compare("failover", read(home))
}
