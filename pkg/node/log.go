package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/starling-registry/starling/raftstore"
)

// raftDir has the log, in the data directory.
const raftDir = "raft"

// A LogInfo is what a data directory holds of the log of the cluster, seen
// while no node runs in it.
type LogInfo struct {
	Cluster    string         `json:"clusterId"`  // "": none yet
	Node       string         `json:"node"`       // id
	Generation uint64         `json:"generation"` // counts the recoveries, from 1
	LastIndex  uint64         `json:"lastIndex"`  // of the newest entry, or of the snapshot if that is newer; 0: the log has not begun
	LastTerm   uint64         `json:"lastTerm"`
	Servers    []LogServer    `json:"servers"` // of the newest configuration
	Rows       map[string]int `json:"rows"`    // of the tables, by kind, with all entries carried out
	LogBytes   int64          `json:"logBytes"`
}

// A LogServer is a node that the log is kept on.
type LogServer struct {
	ID    string `json:"id"`
	Voter bool   `json:"voter"`
}

// A BackupInfo is what a backup holds.
type BackupInfo struct {
	Index uint64         `json:"index"` // entry of the log that it was made at
	Rows  map[string]int `json:"rows"`  // by kind
}

// CheckBackup reads a backup to its end.
func CheckBackup(r io.Reader) (BackupInfo, error) {
	info, err := raftstore.CheckSnapshot(r)
	return BackupInfo{Index: info.Index, Rows: info.Rows}, err
}

// InspectLog tells what a data directory holds of the log, and changes nothing.
// It fails if a node runs in it.
func InspectLog(dir string) (LogInfo, error) {
	return stoppedLog(dir, func(path, _ string) (raftstore.Info, error) { return raftstore.Inspect(path) })
}

// RecoverLog makes the log in a data directory that of the cluster, and its node
// the only voter, and tells what it holds then. It fails if a node runs in it.
// Everything in the log counts as written, whether it was acknowledged or not.
func RecoverLog(dir string) (LogInfo, error) { return stoppedLog(dir, raftstore.Recover) }

// stoppedLog calls a function with the log and the id of a node that does not
// run.
func stoppedLog(dir string, do func(path, id string) (raftstore.Info, error)) (LogInfo, error) {
	d, err := openStopped(dir)
	if err != nil {
		return LogInfo{}, fmt.Errorf("--data-dir: %w", err)
	}
	cluster, err := d.ClusterID()
	var info raftstore.Info
	if err == nil {
		if info, err = do(filepath.Join(d.path, raftDir), d.NodeID); err != nil {
			err = forPeople{err}
		}
	}
	if err = errors.Join(err, d.Close()); err != nil {
		return LogInfo{}, err
	}
	out := LogInfo{Cluster: cluster, Node: d.NodeID, Generation: info.Generation, LastIndex: info.LastIndex, LastTerm: info.LastTerm,
		Servers: []LogServer{}, Rows: info.Rows, LogBytes: info.LogBytes}
	for _, s := range info.Servers {
		out.Servers = append(out.Servers, LogServer{ID: s.ID, Voter: s.Voter})
	}
	return out, nil
}

// openStopped locks a data directory in which a node has run, and changes
// nothing in it: no new epoch begins.
func openStopped(dir string) (*DataDir, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	d := &DataDir{path: path, root: root}
	err = func() error {
		var err error
		if d.lock, err = root.OpenFile("lock", os.O_RDWR, 0); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("no node has run in %s: is it the data directory?", path)
		} else if err != nil {
			return fmt.Errorf("data directory %s: %w", path, err)
		}
		if err := d.hold(); err != nil {
			return err
		}
		d.NodeID, err = d.openID(true)
		return err
	}()
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}
