package client

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A failoverBench is a directory and what its watcher has told.
type failoverBench struct {
	t    *testing.T
	dir  string
	book *logbook

	mu    sync.Mutex
	told  int // how often
	on    bool
	lists map[ServiceID]stored
}

// watchFailover runs a failover in a bubble; it ends with the test.
func watchFailover(t *testing.T, dir string) *failoverBench {
	b := &failoverBench{t: t, dir: dir}
	log, book := newLogbook()
	b.book = book
	f := newFailover(&Config{FailoverDir: dir}, nil, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx, func(on bool, lists map[ServiceID]stored) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.told++
			b.on, b.lists = on, lists
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return b
}

func (b *failoverBench) write(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *failoverBench) services() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.lists)
}

// after checks what has been told after one more look.
func (b *failoverBench) after(what string, on bool, told int, ips ...string) {
	b.t.Helper()
	time.Sleep(failoverEvery)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	var got []string
	for _, i := range b.lists[orderID].instances {
		got = append(got, i.IP)
	}
	if b.on != on || b.told != told || !reflect.DeepEqual(got, ips) {
		b.t.Errorf("%s: on %v with %v, told %d times; want %v with %v, %d times", what, b.on, got, b.told, on, ips, told)
	}
}

var orderID = ServiceID{DefaultGroup, "order"}

const orderFile = "DEFAULT_GROUP%40%40order"

func orderAt(ip string) string { return `{"name":"order","hosts":[{"ip":"` + ip + `","port":1}]}` }

// F-1 … F-3: the switch, and the lists while it is on.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := watchFailover(t, filepath.Join(t.TempDir(), "failover"))
		b.after("no directory", false, 0)
		if err := os.Mkdir(b.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		b.write(orderFile, orderAt("10.0.0.1"))
		b.after("no switch", false, 0)
		b.write(failoverSwitch, "0\n")
		b.after("off", false, 0)
		b.write(failoverSwitch, "maybe")
		b.after("neither, before it was on", false, 0)
		b.write(failoverSwitch, "# since the accident\n 1 \n0\n")
		b.after("on: the first line that is one of both", true, 1, "10.0.0.1")
		b.after("no change", true, 1, "10.0.0.1")
		b.write(failoverSwitch, "maybe")
		b.after("neither, while it is on", true, 1, "10.0.0.1")
		b.write(failoverSwitch, "")
		b.after("an empty switch", true, 1, "10.0.0.1")

		b.write(orderFile, orderAt("10.0.0.2")) // of the same size
		b.after("another list", true, 2, "10.0.0.2")
		b.write(orderFile, orderAt("10.0.0.3")[:20])
		b.after("half of it", true, 2, "10.0.0.2")
		b.write(orderFile, orderAt("10.0.0.3"))
		b.after("all of it", true, 3, "10.0.0.3")
		b.write("g%40%40other", orderAt("10.0.0.9"))
		b.after("another service", true, 4, "10.0.0.3")
		if n := b.services(); n != 2 {
			t.Errorf("%d lists", n)
		}
		os.Remove(filepath.Join(b.dir, "g%40%40other"))
		b.after("it is removed", true, 5, "10.0.0.3")
		os.Remove(filepath.Join(b.dir, orderFile))
		b.after("an empty directory keeps the lists", true, 5, "10.0.0.3")

		b.write(failoverSwitch, "0")
		b.after("off again", false, 6)
		if n := b.services(); n > 0 {
			t.Errorf("%d lists while it is off", n)
		}
		b.write(failoverSwitch, "1")
		b.after("on without lists", true, 7)
		b.write(orderFile+"@@c-1", orderAt("10.0.0.4"))
		b.after("a list of clusters (F-5)", true, 8, "10.0.0.4")
		os.RemoveAll(b.dir)
		b.after("no directory any more", false, 9)
		if w := b.book.warnings(); len(w) != 1 { // the half file
			t.Errorf("warnings: %q", w)
		}
	})
}

// F-1: a switch that cannot be read is off, and says so once.
func TestFailoverUnreadable(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"a directory in place of the switch": func(t *testing.T, dir string) {
			path := filepath.Join(dir, failoverSwitch)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"a file in place of the directory": func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"not allowed": func(t *testing.T, dir string) {
			if os.Getuid() == 0 {
				t.Skip("root may read everything")
			}
			if err := os.Chmod(filepath.Join(dir, failoverSwitch), 0); err != nil {
				t.Fatal(err)
			}
		},
		"a device": func(t *testing.T, dir string) {
			if runtime.GOOS == "windows" {
				t.Skip("there are none")
			}
			path := filepath.Join(dir, failoverSwitch)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/dev/zero", path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := watchFailover(t, t.TempDir())
				b.write(failoverSwitch, "1")
				b.write(orderFile, orderAt("10.0.0.1"))
				b.after("on", true, 1, "10.0.0.1")
				spoil(t, b.dir)
				b.after("spoilt", false, 2)
				b.after("still spoilt", false, 2)
				if w := b.book.warnings(); len(w) != 1 {
					t.Errorf("warnings: %q", w)
				}
			})
		})
	}
}

// F-2: it is looked at in the beginning, and data that Java has written are
// read there too.
func TestFailoverAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		unpack(t, javaArchives[1], dir)
		if err := os.WriteFile(filepath.Join(dir, failoverSwitch), []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
		b := watchFailover(t, dir)
		if n := b.services(); n != len(javaLists()) {
			t.Errorf("%d lists", n)
		}
		b.mu.Lock()
		clear(b.lists) // they are the callee's
		b.mu.Unlock()
		b.after("no change", true, 1)
	})
}

func TestFailoverDirectory(t *testing.T) {
	log, _ := newLogbook()
	cache := openCache("/c", "ns", log)
	for _, test := range []struct {
		dir   string
		cache *diskCache
		want  string
	}{
		{"", cache, "/c/naming/ns/failover"}, {"/f", cache, "/f"}, {"/f", nil, "/f"}, {"", nil, ""}, {"off", cache, ""},
	} {
		got := ""
		f := newFailover(&Config{FailoverDir: test.dir}, test.cache, log)
		if f != nil {
			got = f.dir
		}
		if got != filepath.FromSlash(test.want) {
			t.Errorf("FailoverDir %q: %q, want %q", test.dir, got, test.want)
		}
	}
	var none *failover
	none.run(t.Context(), nil) // returns
}

func FuzzSwitch(f *testing.F) {
	f.Add([]byte("1\n"), false)
	f.Add([]byte("x\r\n 0 \r\n1"), true)
	f.Fuzz(func(t *testing.T, content []byte, was bool) {
		path := filepath.Join(t.TempDir(), "switch")
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readSwitch(path, was); err != nil {
			t.Error(err)
		}
	})
}
