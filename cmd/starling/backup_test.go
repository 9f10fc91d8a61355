package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/node"
)

// aBackup is one for fakeLog: a magic, the content, an end.
const aBackup = "BACKUP persistent things END"

// fakeLog does not touch any file.
func fakeLog() offlineLog {
	return offlineLog{check: func(r io.Reader) (node.BackupInfo, error) {
		b, err := io.ReadAll(r)
		switch s := string(b); {
		case err != nil:
			return node.BackupInfo{}, err
		case !strings.HasPrefix(s, "BACKUP "):
			return node.BackupInfo{}, errors.New("it is no snapshot")
		case !strings.HasSuffix(s, " END"):
			return node.BackupInfo{}, errors.New("it ends in the middle")
		}
		return node.BackupInfo{Index: 42, Rows: map[string]int{"instances": 3, "services": 1, "users": 0}}, nil
	}}
}

// A rawBackup is an answer of an apiNode: the content of a backup.
type rawBackup struct {
	content string
	broken  bool // the connection breaks behind it
	cut     int  // bytes that something between throws away, leaving a proper end
}

func (b rawBackup) write(w http.ResponseWriter) {
	sum := sha256.Sum256([]byte(b.content))
	w.Header().Set("Content-Type", api.BackupType)
	w.Header().Set(api.HeaderNode, idA)
	w.Header().Set("Trailer", api.HeaderBytes+", "+api.HeaderSHA256)
	_, _ = io.WriteString(w, b.content[:len(b.content)-b.cut])
	if b.broken {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	w.Header().Set(api.HeaderBytes, strconv.Itoa(len(b.content)))
	w.Header().Set(api.HeaderSHA256, hex.EncodeToString(sum[:]))
}

func TestBackup(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	b.answers["GET /backup"] = &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "node-b does not lead", Hint: "ask node-a", Server: a.addr}
	a.answers["GET /backup"] = rawBackup{content: aBackup}
	dir := t.TempDir()
	name := filepath.Join(dir, "starling.backup")
	entries := func() (names string) {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names += e.Name() + " "
		}
		return strings.TrimSpace(names)
	}

	// The one that does not lead names the one that does.
	status, stdout, stderr := starling(nil, "backup", name, "--server", b.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "backup", stdout, map[string]string{a.addr: "A", name: "F"}, "F"+strings.Repeat("~", len(name)-1)+": instances 3, services 1, as of entry 42 of the log of A"+
		strings.Repeat("~", len(a.addr)-1)+" (28B)")
	content := func() string {
		t.Helper()
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	if content() != aBackup {
		t.Error(content())
	}
	if s, err := os.Stat(name); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("passwords are for others to read: %v, %v", s.Mode(), err)
	}
	status, stdout, _ = starling(nil, "backup", "-", "--server", a.addr)
	if status != exitOK || stdout != aBackup {
		t.Errorf("status %d: %s", status, stdout)
	}
	status, stdout, _ = starling(nil, "backup", name, "--json", "--server", a.addr)
	var back struct {
		File, Node, Server, SHA256 string
		Bytes, Index               int
		Rows                       map[string]int
	}
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || back.File != name || back.Node != idA || back.Server != a.addr ||
		back.Bytes != len(aBackup) || back.Index != 42 || back.Rows["instances"] != 3 || len(back.SHA256) != 64 {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}

	// What is there stays unless all of another is.
	fails := func(says string, args ...string) {
		t.Helper()
		status, stdout, stderr := starling(nil, append([]string{"backup", "--server", a.addr}, args...)...)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%v: status %d: %s%s", args, status, stdout, stderr)
		}
		if content() != aBackup || entries() != "starling.backup" {
			t.Errorf("left behind: %s, with %s", entries(), content())
		}
	}
	a.answers["GET /backup"] = rawBackup{content: "BACKUP of something else END", broken: true}
	fails("ended after 28 bytes", name)
	a.answers["GET /backup"] = rawBackup{content: "BACKUP of something else END END", cut: 4}
	fails("not whole", name)
	a.answers["GET /backup"] = rawBackup{content: "BACKUP of something else"}
	fails("no backup: it ends in the middle", name)
	a.answers["GET /backup"] = map[string]string{"a": "value"}
	fails("no backup", name)
	a.answers["GET /backup"] = &api.Error{Status: 503, Code: api.CodeNoLeader, Message: "nobody leads"}
	fails("nobody leads", name)
	// Two that name each other.
	a.answers["GET /backup"] = &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "does not lead", Server: b.addr}
	fails("does not lead", name)

	a.answers["GET /backup"] = rawBackup{content: "BACKUP new END"}
	fails("no such file", filepath.Join(dir, "none", "b"))
	fails("is there and no file", dir)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := starling(nil, "backup", link, "--server", a.addr); status != exitOK || content() != "BACKUP new END" {
		t.Errorf("through a link: status %d: %s", status, stderr)
	}
}

// A signal ends a backup, and nothing of it stays.
func TestBackupIsStopped(t *testing.T) {
	a := newAPINode(t)
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	var signals chan<- os.Signal
	hold := make(chan struct{})
	defer close(hold)
	a.answers["GET /backup"] = func() any {
		signals <- syscall.SIGTERM
		<-hold
		return rawBackup{content: aBackup}
	}
	status := run(&process{args: []string{"backup", filepath.Join(dir, "b"), "--server", a.addr}, stdout: &stdout, stderr: &stderr,
		notify: func(c chan<- os.Signal) { signals = c }, log: fakeLog()})
	if list, err := os.ReadDir(dir); status != exitFailed || !strings.Contains(stderr.String(), "stopped by a signal") || len(list) != 0 || err != nil {
		t.Errorf("status %d, %v, %v: %s", status, list, err, stderr.String())
	}
}

func TestPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, moved, stop := patient(t.Context(), time.Minute)
		defer stop()
		for range 3 {
			time.Sleep(50 * time.Second)
			moved()
		}
		time.Sleep(59 * time.Second)
		if ctx.Err() != nil {
			t.Error("it moves")
		}
		time.Sleep(2 * time.Second)
		if ctx.Err() == nil {
			t.Error("it does not move")
		}
	})
}

func TestRestore(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	name := file(t, aBackup)
	b.answers["POST /restore"] = &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "node-b does not lead", Server: a.addr}
	a.answers["POST /restore"] = api.Restored{Node: idA, Name: "node-a", Applied: 7, Rows: map[string]int{"instances": 3}}
	status, stdout, stderr := starling(nil, "restore", name, "--server", b.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "restore", stdout, nil, "restored: instances 3, with entry 7 of the log, on node-a")
	if last := a.asked[len(a.asked)-1]; last != "POST /restore "+aBackup {
		t.Error(last)
	}
	a.answers["POST /restore"] = &api.Error{Status: 409, Code: api.CodeNotEmpty, Message: "the log holds 3 instances"}
	a.answers["POST /restore?force=true"] = api.Restored{Node: idA, Name: "node-a", Applied: 8}
	status, stdout, stderr = starling(nil, "restore", name, "--server", a.addr)
	if status != exitFailed || stdout != "" || !strings.Contains(stderr, "the log holds 3 instances\n") || !strings.Contains(stderr, "--force") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	status, stdout, _ = starling(nil, "restore", name, "--server", b.addr, "--force")
	if status != exitFailed { // b has no answer to that
		t.Errorf("status %d: %s", status, stdout)
	}
	status, stdout, _ = starling(nil, "restore", name, "--server", a.addr, "--force")
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	want(t, "force", stdout, nil, "restored: instances 3, services 1, with entry 8 of the log, on node-a")
	status, stdout, _ = starling(nil, "restore", name, "--server", a.addr, "--force", "--json")
	var back api.Restored
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || back.Applied != 8 {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}

	// Nothing is sent that is no backup.
	asked := len(a.asked)
	for content, says := range map[string]string{"": "no snapshot", "port: 8848\n": "no snapshot", aBackup[:10]: "ends in the middle"} {
		if status, _, stderr := starling(nil, "restore", file(t, content), "--server", a.addr); status != exitFailed || !strings.Contains(stderr, says) {
			t.Errorf("%q: status %d: %s", content, status, stderr)
		}
	}
	if status, _, stderr := starling(nil, "restore", filepath.Join(t.TempDir(), "none"), "--server", a.addr); status != exitFailed || !strings.Contains(stderr, "no such file") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if len(a.asked) != asked {
		t.Errorf("asked for %v", a.asked[asked:])
	}
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w bytes.Buffer
		p := newProgress(&process{stderr: &w}, 40<<20)
		p.sent(1)
		p.end()
		if w.Len() > 0 {
			t.Errorf("on what is no terminal: %q", w.String())
		}
		p.w = &w
		p.sent(1 << 20)
		time.Sleep(time.Second)
		p.sent(20 << 20)
		p.sent(21 << 20)
		p.end()
		if w.String() != "\rsent 20MiB of 40MiB  \r\x1b[K" {
			t.Errorf("%q", w.String())
		}
	})
}
