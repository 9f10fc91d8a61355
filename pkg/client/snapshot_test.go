package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A logbook keeps what is logged.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

// warnings are the lines of that level and above.
func (l *logbook) warnings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(s string) bool {
		return !strings.Contains(s, "level=WARN") && !strings.Contains(s, "level=ERROR")
	})
}

func newLogbook() (*slog.Logger, *logbook) {
	l := new(logbook)
	return slog.New(slog.NewTextHandler(l, nil)), l
}

func flush(t *testing.T, c *diskCache) {
	t.Helper()
	if err := c.close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func instance(ip string, port int) Instance {
	return Instance{ID: fmt.Sprintf("%s#%d", ip, port), IP: ip, Port: port, Cluster: DefaultCluster, Weight: 1, Healthy: true, Enabled: true, Ephemeral: true, Metadata: map[string]string{}}
}

// unpack writes the files of an archive (a name, a tab and the content in each
// line) into a directory. They are kept like this because the go command takes
// no files with such names.
func unpack(t *testing.T, archive, dir string) (names []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", archive))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		name, content, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// Written by nacos-client 2.5.1 and 3.1.1 (testdata/Lists.java).
var javaArchives = []string{"java-2.5.1.txt", "java-3.1.1.txt"}

// javaOdd are the names in them that a file cannot have as they are.
var javaOdd = []string{"a b", "star*", "tilde~", "100%", "%40", "plus+", "umlaut-ä-中-😀", "x:y,z(1)", `a/b\c`, "Order_1.2-3"}

func javaLists() map[ServiceID][]Instance {
	want := make(map[ServiceID][]Instance)
	order := instance("10.0.0.1", 8080)
	order.ID = "10.0.0.1#8080#DEFAULT#team-a@@order"
	want[ServiceID{"team-a", "order"}] = []Instance{order}
	beats := instance("fd00::1", 65535)
	beats.ID, beats.Weight = "fd00::1#65535#DEFAULT#DEFAULT_GROUP@@beats", 0
	beats.Metadata = map[string]string{"preserved.heart.beat.interval": "1000", "preserved.heart.beat.timeout": "3000", "preserved.ip.delete.timeout": "9000"}
	want[ServiceID{DefaultGroup, "beats"}] = []Instance{beats}
	a, b := instance("10.0.0.3", 1), instance("10.0.0.3", 2)
	a.ID, a.Cluster, a.Weight = "10.0.0.3#1#c-1#DEFAULT_GROUP@@many", "c-1", 10000
	b.ID, b.Weight, b.Healthy = "10.0.0.3#2#DEFAULT#DEFAULT_GROUP@@many", 0.01, false
	want[ServiceID{DefaultGroup, "many"}] = []Instance{b, a}
	for _, odd := range javaOdd {
		i := instance("10.0.0.2", 9090)
		i.ID, i.Cluster, i.Weight, i.Metadata = "", "c", 2.5, map[string]string{"version": "1", "text": "\"q\" <&> \n ü"}
		want[ServiceID{DefaultGroup, odd}] = []Instance{i}
	}
	return want
}

// C-8 … C-12: what the Java client has written is read with all that it says.
func TestReadsJava(t *testing.T) {
	for _, archive := range javaArchives {
		dir := t.TempDir()
		unpack(t, archive, filepath.Join(dir, "naming", "public"))
		log, book := newLogbook()
		lists := openCache(dir, "", log).load()
		want := javaLists()
		if len(lists) != len(want) {
			t.Errorf("%s: %d lists are read, want %d", archive, len(lists), len(want))
		}
		for id, instances := range want {
			got := lists[id]
			if !reflect.DeepEqual(got.instances, instances) {
				t.Errorf("%s: %s has\n%+v, want\n%+v", archive, id, got.instances, instances)
			}
			odd := slices.Contains(javaOdd, id.Name)
			if got.cacheMillis != 10000 || got.protected != odd || odd != (got.lastRefTime == 1700000000000) || got.lastRefTime < 1700000000000 {
				t.Errorf("%s: %s has %+v", archive, id, got)
			}
			if age := time.Since(got.asOf); age < 0 || age > time.Minute {
				t.Errorf("%s: %s is from %v ago", archive, id, age)
			}
		}
		if w := book.warnings(); len(w) > 0 {
			t.Errorf("warnings: %q", w)
		}
	}
}

// C-9, C-10: written again, the files have Java's names, and Java's content but
// for what differs between its versions.
func TestWritesAsJava(t *testing.T) {
	for _, archive := range javaArchives {
		from, to := t.TempDir(), t.TempDir()
		names := unpack(t, archive, filepath.Join(from, "naming", "public"))
		log, _ := newLogbook()
		lists := openCache(from, "public", log).load()
		c := openCache(to, "", log)
		for id, s := range lists {
			c.put(id, s)
		}
		flush(t, c)
		for _, name := range names {
			var theirs, ours map[string]any
			for dir, v := range map[string]*map[string]any{from: &theirs, to: &ours} {
				b, err := os.ReadFile(filepath.Join(dir, "naming", "public", name))
				if err != nil {
					t.Fatal(err)
				}
				if n := bytes.Count(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")); n > 0 {
					t.Errorf("%s has %d lines", name, n+1)
				}
				if err := json.Unmarshal(b, v); err != nil {
					t.Fatal(err)
				}
				delete(*v, "allIPs")
				delete(*v, "allIps")
				hosts := (*v)["hosts"].([]any)
				for _, h := range hosts {
					// Not there where there was no server to set them.
					delete(h.(map[string]any), "serviceName")
					delete(h.(map[string]any), "instanceIdGenerator")
				}
				slices.SortFunc(hosts, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
			if !reflect.DeepEqual(ours, theirs) {
				t.Errorf("%s:\n%v, want\n%v", name, ours, theirs)
			}
		}
		if left, _ := os.ReadDir(filepath.Join(to, "naming", "public")); len(left) != len(names) {
			t.Errorf("%d files are written, want %d", len(left), len(names))
		}
	}
}

// C-9: names of files, there and back.
func TestListFile(t *testing.T) {
	for id, want := range map[ServiceID]string{
		{DefaultGroup, "order"}:     "DEFAULT_GROUP%40%40order",
		{DefaultGroup, "a b*c~d"}:   "DEFAULT_GROUP%40%40a+b*c%7Ed",
		{"g", "providers:x.Y:1:"}:   "g%40%40providers%3Ax.Y%3A1%3A",
		{"g", "../../etc/passwd"}:   "g%40%40..%2F..%2Fetc%2Fpasswd",
		{"g", "%2A%7E"}:             "g%40%40%252A%257E",
		{"..", "x"}:                 "..%40%40x",
		{"ä", "\x00"}:               "%C3%A4%40%40%00",
		{DefaultGroup, "with@sign"}: "DEFAULT_GROUP%40%40with%40sign",
	} {
		if got := listFile(id); got != want {
			t.Errorf("%q is kept as %q, want %q", id, got, want)
		}
		if back, clusters, ok := parseListFile(want); !ok || back != id || clusters != "" {
			t.Errorf("%q is read as %q, %q, %v", want, back, clusters, ok)
		}
	}
	for name, want := range map[string]string{
		"DEFAULT_GROUP@@order":               "DEFAULT_GROUP@@order",
		"DEFAULT_GROUP@@a+b":                 "DEFAULT_GROUP@@a+b", // of the Go SDK, as it is
		"DEFAULT_GROUP@@100%":                "DEFAULT_GROUP@@100%",
		"DEFAULT_GROUP@@order@@a,b":          "DEFAULT_GROUP@@order clusters a,b",
		"DEFAULT_GROUP%40%40order@@a,b":      "DEFAULT_GROUP@@order clusters a,b",
		"DEFAULT_GROUP%40%40order@@meta":     "",
		"DEFAULT_GROUP%40%40order%40%40meta": "",
		"new-123@@special-url":               "",
		"order":                              "",
		"g%40%40":                            "",
		"%40%40order":                        "",
		"g%40%40bad%zz":                      "",
		"00-00---000-VIPSRV_FAILOVER_SWITCH-000---00-00": "",
	} {
		id, clusters, ok := parseListFile(name)
		got := ""
		if ok {
			got = id.String()
		}
		if clusters != "" {
			got += " clusters " + clusters
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q", name, got, want)
		}
	}
}

// C-11: what people and older clients write.
func TestDecodeList(t *testing.T) {
	one := []Instance{instance("10.0.0.1", 80)}
	one[0].ID = ""
	for name, test := range map[string]struct {
		file string
		want []Instance // nil: it is refused
	}{
		"pretty":                   {"{\n  \"name\": \"order\",\n  \"hosts\": [\n    {\n      \"ip\": \"10.0.0.1\",\n      \"port\": 80\n    }\n  ]\n}\n", one},
		"mark of byte order":       {"\ufeff" + `{"name":"order","hosts":[{"ip":"10.0.0.1","port":80}]}`, one},
		"comment before":           {"# by hand\r\n" + `{"name":"order","hosts":[{"ip":"10.0.0.1","port":80}]}` + "\r\n", one},
		"one instance a line":      {`{"ip":"10.0.0.1","port":80}` + "\n", one},
		"the last of two":          {`{"name":"a","hosts":[{"ip":"10.9.9.9","port":80}]}` + "\n" + `{"name":"b","hosts":[{"ip":"10.0.0.1","port":80}]}`, one},
		"other types":              {`{"name":"order","hosts":[{"ip":"10.0.0.1","port":"80","weight":"1.0","healthy":"true","enabled":1,"ephemeral":null,"metadata":null}]}`, one},
		"nulls":                    {`{"name":"order","hosts":[null,{"ip":"10.0.0.1","port":80.0,"weight":null,"metadata":{}}]}`, one},
		"doubles":                  {`{"name":"order","hosts":[{"ip":"10.0.0.1","port":80,"weight":9},{"ip":"10.0.0.1","port":80}]}`, one},
		"no address":               {`{"name":"order","hosts":[{"port":80},{"ip":"10.0.0.1","port":80},{"ip":"x","port":-1},{"ip":"x","port":65536}]}`, one},
		"no instances":             {`{"name":"order","hosts":[]}`, []Instance{}},
		"no hosts":                 {`{"name":"order"}`, []Instance{}},
		"empty":                    {"", nil},
		"blank":                    {" \n\n", nil},
		"half":                     {`{"name":"order","hosts":[{"ip":"10.0.0.1","port":80},{"ip":`, nil},
		"half, pretty":             {"{\"name\":\"order\",\"hosts\":[\n{\"ip\":\"10.0.0.1\",\"port\":80},\n{\"ip\":", nil},
		"zeros after a crash":      {strings.Repeat("\x00", 4096), nil},
		"not JSON":                 {"<html>", nil},
		"metadata of another form": {`{"name":"order","hosts":[{"ip":"a","port":1,"metadata":{"o":{}}}]}`, nil},
		"an array":                 {`[{"ip":"10.0.0.1","port":80}]`, nil},
		"null":                     {"null", nil},
		"an object of nothing":     {"{}", nil},
		"deep":                     {strings.Repeat(`{"hosts":[`, 20000), nil},
	} {
		got, err := decodeList([]byte(test.file))
		if (err != nil) != (test.want == nil) || err == nil && !reflect.DeepEqual(got.instances, test.want) {
			t.Errorf("%s: %+v, %v", name, got.instances, err)
		}
	}
	got, err := decodeList([]byte(`{"name":"order","hosts":[{"ip":"a","port":1,"weight":"NaN"},{"ip":"b","port":1,"weight":"Infinity"},{"ip":"c","port":1,"weight":1e999}]}`))
	if err != nil || len(got.instances) != 3 || got.instances[0].Weight != 0 || !math.IsInf(got.instances[1].Weight, 1) || !math.IsInf(got.instances[2].Weight, 1) {
		t.Errorf("weights that are no numbers: %+v, %v", got.instances, err)
	}
	got, err = decodeList([]byte(`{"name":"order","hosts":[{"ip":"a","port":1,"metadata":{"n":5,"t":true,"z":null}}]}`))
	if want := map[string]string{"n": "5", "t": "true", "z": ""}; err != nil || !maps.Equal(got.instances[0].Metadata, want) {
		t.Errorf("metadata %v, %v, want %v", got.instances[0].Metadata, err, want)
	}
}

// F-5, C-6 of old: lists of some clusters count together, and only without one
// of all.
func TestClustersOfOldFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, ip string, age time.Duration) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, fmt.Appendf(nil, `{"name":"order","hosts":[{"ip":%q,"port":1}]}`, ip), 0o644); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	ips := func() (list []string) {
		d := listDir{dir: dir}
		lists, err := d.read(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range lists[ServiceID{"g", "order"}].instances {
			list = append(list, i.IP)
		}
		return list
	}
	file("g%40%40order@@a", "10.0.0.1", time.Minute)
	file("g%40%40order@@b", "10.0.0.2", time.Hour)
	if got := ips(); !slices.Equal(got, []string{"10.0.0.1", "10.0.0.2"}) {
		t.Errorf("two clusters: %v", got)
	}
	file("g@@order", "10.0.0.3", time.Hour) // of the Go SDK
	if got := ips(); !slices.Equal(got, []string{"10.0.0.3"}) {
		t.Errorf("a list of all beside them: %v", got)
	}
	file("g%40%40order", "10.0.0.4", 2*time.Hour)
	if got := ips(); !slices.Equal(got, []string{"10.0.0.3"}) {
		t.Errorf("the newer of two: %v", got)
	}
}

// F-2: a file that has the time and the size of before is not read again, unless
// it was written just before it was read: then what comes next may have both too.
func TestReadsAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "g%40%40order")
	modified := time.Now().Add(-time.Hour)
	write := func(ip string) {
		if err := os.WriteFile(path, []byte(orderAt(ip)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	d := listDir{dir: dir}
	ip := func(now time.Time) string {
		lists, err := d.read(now)
		if err != nil {
			t.Fatal(err)
		}
		return lists[ServiceID{"g", "order"}].instances[0].IP
	}
	write("10.0.0.1")
	ip(modified.Add(time.Second))
	write("10.0.0.2")
	if got := ip(modified.Add(10 * time.Second)); got != "10.0.0.2" {
		t.Errorf("what was written at the same time is not read: %s", got)
	}
	write("10.0.0.3")
	if got := ip(modified.Add(20 * time.Second)); got != "10.0.0.2" {
		t.Errorf("a file that has not changed is read again: %s", got)
	}
}

// C-12: bad files beside good ones: the good ones are read, and it is said once.
func TestLoadPassesOverBadFiles(t *testing.T) {
	dir := t.TempDir()
	lists := filepath.Join(dir, "naming", "n-1")
	if err := os.MkdirAll(filepath.Join(lists, "failover"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) string {
		path := filepath.Join(lists, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := encodeList(ServiceID{"g", "good"}, stored{instances: []Instance{instance("10.0.0.1", 1)}})
	write("g%40%40good", good)
	write("g%40%40half", good[:len(good)/2])
	write("g%40%40empty", nil)
	write("g%40%40bad%zz", good)
	write("README", good)
	if err := os.Truncate(write("g%40%40huge", good), maxListFile+1); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(lists, "g%40%40good"), filepath.Join(lists, "g%40%40linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(lists, "g%40%40dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(lists, "g%40%40directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		if err := os.Symlink("/dev/zero", filepath.Join(lists, "g%40%40device")); err != nil { // never ends
			t.Fatal(err)
		}
		if os.Getuid() != 0 { // root reads all
			if err := os.Chmod(write("g%40%40secret", good), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if mkfifo, err := exec.LookPath("mkfifo"); err == nil { // nobody will ever write to it
		if out, err := exec.Command(mkfifo, filepath.Join(lists, "g%40%40pipe")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	log, book := newLogbook()
	got := slices.Collect(maps.Keys(openCache(dir, "n-1", log).load()))
	slices.SortFunc(got, func(a, b ServiceID) int { return strings.Compare(a.Name, b.Name) })
	if want := []ServiceID{{"g", "good"}, {"g", "linked"}}; !slices.Equal(got, want) {
		t.Errorf("%v are read, want %v", got, want)
	}
	if w := book.warnings(); len(w) != 1 || !strings.Contains(w[0], "other files") {
		t.Errorf("warnings: %q", w)
	}
}

// C-8: a directory that cannot be is told once and harms nobody.
func TestUnwritableDirectory(t *testing.T) {
	id, s := ServiceID{"g", "order"}, stored{instances: []Instance{instance("10.0.0.1", 1)}}
	for name, dir := range map[string]func(t *testing.T) string{
		"a file in its place": func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			return path
		},
		"a file in the place of the namespace's": func(t *testing.T) string {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "naming"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "naming", "public"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			return dir
		},
		"not allowed": func(t *testing.T) string {
			if os.Getuid() == 0 {
				t.Skip("root may write everywhere")
			}
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o500); err != nil {
				t.Fatal(err)
			}
			return dir
		},
		"no file system": func(t *testing.T) string { return "/proc/nothing" },
	} {
		t.Run(name, func(t *testing.T) {
			log, book := newLogbook()
			c := openCache(dir(t), "", log)
			if lists := c.load(); len(lists) > 0 {
				t.Errorf("lists of nowhere: %v", lists)
			}
			for n := range 20 {
				c.put(ServiceID{"g", fmt.Sprint(n)}, s)
			}
			c.put(id, s)
			flush(t, c)
			if w := book.warnings(); len(w) != 1 {
				t.Errorf("%d warnings: %q", len(w), w)
			}
			if failed := writeSnapshot(c.dir, map[ServiceID]stored{id: s}); failed == nil {
				t.Error("an export into it succeeds")
			}
		})
	}
}

func TestCacheDirectory(t *testing.T) {
	log, _ := newLogbook()
	if c := openCache("off", "", log); c != nil {
		t.Error("off is somewhere")
	}
	var none *diskCache
	none.put(ServiceID{}, stored{})
	if lists, err := none.load(), none.close(t.Context()); len(lists) > 0 || err != nil {
		t.Error(lists, err)
	}
	t.Setenv("XDG_CACHE_HOME", "/somewhere")
	if runtime.GOOS == "linux" {
		if got := openCache("", "", log).dir; got != "/somewhere/starling/naming/public" {
			t.Errorf("the directory is %s", got)
		}
	}
	for namespace, want := range map[string]string{
		"": "public", "dev": "dev", "..": "%2E%2E", ".": "%2E", "../x": "%2E%2E%2Fx", `a\b`: "a%5Cb", "a.b": "a.b",
	} {
		if got := namespaceDir(namespace); got != want {
			t.Errorf("namespace %q is kept in %q, want %q", namespace, got, want)
		}
	}
}

// C-7: many changes of a service cost few files, and the last one stays.
func TestWriterCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, book := newLogbook()
		c := openCache(t.TempDir(), "", log)
		id := ServiceID{"g", "order"}
		path := filepath.Join(c.dir, listFile(id))
		written := 0
		var last time.Time
		for n := range 1000 {
			c.put(id, stored{instances: []Instance{instance("10.0.0.1", n)}})
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if info, err := os.Stat(path); err == nil && !info.ModTime().Equal(last) {
				last = info.ModTime()
				written++
			}
		}
		if written < 2 || written > 15 {
			t.Errorf("%d files are written in a second", written)
		}
		flush(t, c)
		c.put(id, stored{instances: []Instance{instance("10.0.0.1", 7)}}) // is too late
		c = openCache(filepath.Dir(filepath.Dir(c.dir)), "", log)
		if got := c.load()[id].instances; len(got) != 1 || got[0].Port != 999 {
			t.Errorf("the last one is not kept: %v", got)
		}
		if w := book.warnings(); len(w) > 0 {
			t.Error(w)
		}
	})
}

// L-13: closing writes what is left, but not longer than it may.
func TestCloseIsBounded(t *testing.T) {
	log, _ := newLogbook()
	c := openCache(t.TempDir(), "", log)
	for n := range 20000 {
		c.put(ServiceID{"g", fmt.Sprint(n)}, stored{instances: []Instance{instance("10.0.0.1", 1)}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.close(ctx); err == nil {
		t.Error("all are written at once")
	}
	<-c.writing // ends after the file that it is at
	if entries, _ := os.ReadDir(c.dir); len(entries) == 20000 {
		t.Error("nothing was abandoned")
	}
	if err := c.close(ctx); err != nil {
		t.Error("a second close:", err)
	}
}

// C-7: readers see the old list or the new one; what a process has left that
// died while writing is passed over, and removed an hour later.
//
// Row S001-6.
func TestFilesAreWhole(t *testing.T) {
	log, book := newLogbook()
	c := openCache(t.TempDir(), "", log)
	id := ServiceID{"g", "order"}
	lists := []stored{{}, {}}
	for n := range 400 {
		lists[n%2].instances = append(lists[n%2].instances, instance("10.0.0.1", n))
	}
	if err := writeList(c.dir, id, lists[0]); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range 100 {
			if err := writeList(c.dir, id, lists[n%2]); err != nil {
				t.Error(err)
			}
		}
	}()
	for reads := 0; ; reads++ {
		if got := c.load()[id].instances; len(got) != 200 || got[199].Port-got[0].Port != 398 {
			t.Fatalf("read %d has %d instances", reads, len(got))
		}
		select {
		case <-done:
		default:
			continue
		}
		break
	}

	left := filepath.Join(c.dir, "new-1"+unfinished)
	young := filepath.Join(c.dir, "new-2"+unfinished)
	for _, path := range []string{left, young} {
		if err := os.WriteFile(path, []byte(`{"name":"order","ho`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	c.put(id, lists[0])
	flush(t, c)
	if len(c.load()) != 1 {
		t.Error("what is not finished is read")
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what was left is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("what another process is writing is gone")
	}
	if w := book.warnings(); len(w) > 0 {
		t.Error(w)
	}
}

// C-7: the same with a process that is killed while it writes.
//
// Row S001-6.
func TestKilledWriter(t *testing.T) {
	dir := os.Getenv("STARLING_TEST_WRITER")
	id := ServiceID{"g", "order"}
	if dir != "" { // the process
		log, _ := newLogbook()
		c := openCache(dir, "", log)
		for n := 0; ; n++ {
			s := stored{instances: make([]Instance, 1000)}
			for i := range s.instances {
				s.instances[i] = instance("10.0.0.1", i)
				s.instances[i].Weight = float64(n)
			}
			if err := writeList(c.dir, id, s); err != nil {
				panic(err)
			}
		}
	}
	dir = t.TempDir()
	log, book := newLogbook()
	c := openCache(dir, "", log)
	unfinishedLeft := 0
	for range 6 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "STARLING_TEST_WRITER="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(c.dir, listFile(id))
		before, _ := os.Stat(path)
		written := func() bool {
			now, err := os.Stat(path)
			return err == nil && (before == nil || now.ModTime().After(before.ModTime()))
		}
		for deadline := time.Now().Add(20 * time.Second); !written(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing is written")
			}
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		cmd.Process.Kill()
		cmd.Wait()
		got := c.load()[id].instances
		if len(got) != 1000 || got[0].Weight != got[999].Weight {
			t.Fatalf("%d instances are left", len(got))
		}
		left, _ := filepath.Glob(filepath.Join(c.dir, "new-*"))
		unfinishedLeft = max(unfinishedLeft, len(left))
	}
	if w := book.warnings(); len(w) > 0 {
		t.Error(w)
	}
	t.Logf("%d of 6 were killed while writing", unfinishedLeft)
}

// D-1: one identity, one instance; the last one counts.
func TestSortInstances(t *testing.T) {
	list := []Instance{instance("b", 1), instance("a", 2), instance("a", 1), instance("b", 1)}
	list[3].Weight = 7
	other := instance("b", 1)
	other.Cluster = "A"
	got := sortInstances(append(list, other))
	var text []string
	for _, i := range got {
		text = append(text, fmt.Sprint(i.Cluster, i.IP, i.Port, " ", i.Weight))
	}
	if want := []string{"Ab1 1", "DEFAULTa1 1", "DEFAULTa2 1", "DEFAULTb1 7"}; !slices.Equal(text, want) {
		t.Errorf("%q, want %q", text, want)
	}
	if got := sortInstances(nil); len(got) != 0 {
		t.Error(got)
	}
}

func FuzzDecodeList(f *testing.F) {
	for _, archive := range javaArchives {
		data, err := os.ReadFile(filepath.Join("testdata", archive))
		if err != nil {
			f.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			_, content, _ := bytes.Cut(line, []byte("\t"))
			f.Add(content)
		}
	}
	f.Add([]byte("{\"ip\":\"a\",\"port\":\"1\"}\n{\"ip\":\"b\"}"))
	f.Add([]byte("# x\n{\"name\":\"a\",\"hosts\":[null]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := decodeList(data)
		if err != nil {
			return
		}
		again, err := decodeList(encodeList(ServiceID{"g", "n"}, list))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(again.instances, list.instances) || again.protected != list.protected {
			t.Errorf("written and read again %+v is %+v", list, again)
		}
	})
}

func FuzzListFile(f *testing.F) {
	f.Add("DEFAULT_GROUP", "order")
	f.Add("g", "a b*~%2A@x")
	f.Fuzz(func(t *testing.T, group, name string) {
		parseListFile(group + name)
		id := ServiceID{group, name}
		file := listFile(id)
		if strings.ContainsAny(file, "/\\\x00") || file == "." || file == ".." {
			t.Fatalf("%q is no name of a file", file)
		}
		back, clusters, ok := parseListFile(file)
		// Of names with @@ nobody can say which part is which; servers refuse them.
		if whole := group + "@@" + name; strings.Count(whole, "@@") == 1 && !strings.Contains(whole, "@@@") && group != "" && name != "" && !strings.HasSuffix(whole, "@@meta") && !strings.HasSuffix(whole, unfinished) {
			if !ok || back != id || clusters != "" {
				t.Errorf("%q is read as %q, %q, %v", file, back, clusters, ok)
			}
		}
	})
}
