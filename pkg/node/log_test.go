package node

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
	"github.com/starling-registry/starling/raftstore"
)

// openLog runs the log of a data directory without the rest of a node.
func openLog(t *testing.T, d *DataDir) *raftstore.Store { return openLogFor(t, d, projection{}) }

func openLogFor(t *testing.T, d *DataDir, view raftstore.Projection) *raftstore.Store {
	t.Helper()
	o := raftstore.DefaultOptions()
	clock := registry.NewClock(0, 0)
	o.ID, o.Dir, o.Clock, o.Projection, o.NoSync = d.NodeID, filepath.Join(d.path, raftDir), clock, view, true
	o.ClusterID = func() string { return strings.Repeat("c", 32) }
	o.Members = func() []raftstore.Member {
		return []raftstore.Member{{ID: d.NodeID, Alive: true, Since: time.Now(), Commands: raftstore.CommandVersion}}
	}
	o.Logger, o.Metrics = zap.NewNop(), prometheus.NewRegistry()
	s, err := raftstore.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type projection struct{}

func (projection) Commit([]registry.Change) {}

func TestStoppedLog(t *testing.T) {
	dir := t.TempDir()
	refused := func(says string) {
		t.Helper()
		for name, f := range map[string]func(string) (LogInfo, error){"inspect": InspectLog, "recover": RecoverLog} {
			if _, err := f(dir); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %v, want %s", name, err, says)
			}
		}
	}
	refused("no node has run")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("something was made: %v, %v", left, err)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	refused("in use by another process")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	refused("no log")

	d, err = Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.SaveClusterID(strings.Repeat("c", 32)); err != nil {
		t.Fatal(err)
	}
	s := openLog(t, d)
	// Two voters that never were: this one alone has no quorum.
	gone := []string{strings.Repeat("d", 32), strings.Repeat("e", 32)}
	if err := s.Bootstrap(append(gone, d.NodeID)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	epoch, err := os.ReadFile(filepath.Join(dir, "epoch"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := InspectLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if found.Node != d.NodeID || found.Cluster != strings.Repeat("c", 32) || found.Generation != 1 || found.LastIndex != 1 || len(found.Servers) != 3 || !found.Servers[2].Voter {
		t.Errorf("%+v", found)
	}
	recovered, err := RecoverLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if recovered.Generation != 2 || recovered.LastIndex < found.LastIndex || !cmp.Equal(recovered.Servers, []LogServer{{ID: d.NodeID, Voter: true}}) {
		t.Errorf("%+v", recovered)
	}
	if now, err := os.ReadFile(filepath.Join(dir, "epoch")); err != nil || !bytes.Equal(now, epoch) {
		t.Errorf("a new epoch began: %s after %s, %v", now, epoch, err)
	}

	// It leads now, and what it holds can be saved and read.
	d, err = Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s = openLog(t, d)
	for deadline := time.Now().Add(20 * time.Second); !s.Leads(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not lead")
		}
	}
	if err := s.PutSwitch(t.Context(), "healthCheckEnabled", "false"); err != nil {
		t.Error(err)
	}
	var backup bytes.Buffer
	if err := s.Backup(t.Context(), &backup); err != nil {
		t.Error(err)
	}
	info, err := CheckBackup(bytes.NewReader(backup.Bytes()))
	if err != nil || info.Rows["switches"] != 1 || info.Index == 0 {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := CheckBackup(bytes.NewReader(backup.Bytes()[:backup.Len()-1])); err == nil {
		t.Error("a part of a backup is taken for one")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if again, err := InspectLog(dir); err != nil || again.Rows["switches"] != 1 {
		t.Errorf("%+v, %v", again, err)
	}
}

// The leader ends the edit of an instance that is away for long, but not by the
// clock of a process that has only just gone on (cases C13).
func TestEditsOfTheAbsent(t *testing.T) {
	d := open(t, t.TempDir())
	ro := registry.DefaultOptions()
	ro.Clock, ro.OverrideAge = registry.NewClock(0, 0), 50
	reg := registry.New(ro)
	s := openLogFor(t, d, reg)
	defer func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := s.Bootstrap([]string{d.NodeID}); err != nil {
		t.Fatal(err)
	}
	key, at := registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}, registry.InstanceKey{IP: "10.0.0.1", Port: 80, Cluster: "DEFAULT"}
	if err := s.PutOverride(t.Context(), key, at, registry.Override{Enabled: new(false)}, false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var settled atomic.Bool
	looks := make(chan struct{}, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		endEdits(ctx, s, reg, nil, 20*time.Millisecond, func() bool { mark(looks); return settled.Load() }, zap.NewNop())
	}()
	defer func() { cancel(); <-done }()
	for range 10 {
		<-looks
	}
	if _, there := s.Override(key, at); !there {
		t.Error("ended after a stall")
	}
	settled.Store(true)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, there := s.Override(key, at); !there {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("not ended")
		}
	}
}
