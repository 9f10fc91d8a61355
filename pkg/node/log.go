package node

import (
	"fmt"
	"io"

	"github.com/starling-registry/starling/raftstore"
)

// A LogInfo is what a data directory holds of the log of the cluster, seen
// while no node runs in it.
type LogInfo struct {
	Cluster    string         `json:"clusterId"` // "": none yet
	Node       string         `json:"node"`      // id
	Generation uint64         `json:"generation"`
	LastIndex  uint64         `json:"lastIndex"` // of the newest entry, or of the snapshot if that is newer; 0: the log has not begun
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

// InspectLog reads the log in the data directory of a node that is not running.
// It changes nothing.
func InspectLog(dir string) (LogInfo, error) {
	return withLog(dir, func(logDir, _ string) (raftstore.Info, error) { return raftstore.Inspect(logDir) })
}

// RecoverLog makes the log in that directory the cluster's, and its node the only
// voter: for when so many voters are lost for good that no leader can be elected.
// Logs of other nodes do not count from then on.
func RecoverLog(dir string) (LogInfo, error) {
	return withLog(dir, raftstore.Recover)
}

func withLog(dir string, do func(logDir, node string) (raftstore.Info, error)) (LogInfo, error) {
	d, err := openOffline(dir)
	if err != nil {
		return LogInfo{}, err
	}
	defer d.Close()
	cluster, err := d.ClusterID()
	if err != nil {
		return LogInfo{}, err
	}
	logDir, err := d.LogDir()
	if err != nil {
		return LogInfo{}, err
	}
	i, err := do(logDir, d.NodeID)
	if err != nil {
		return LogInfo{}, fmt.Errorf("--data-dir: %w", err)
	}
	info := LogInfo{Cluster: cluster, Node: d.NodeID, Generation: i.Generation, LastIndex: i.LastIndex, LastTerm: i.LastTerm,
		Rows: i.Rows, LogBytes: i.LogBytes, Servers: []LogServer{}}
	for _, s := range i.Servers {
		info.Servers = append(info.Servers, LogServer{s.ID, s.Voter})
	}
	return info, nil
}

// CheckBackup reads a backup to its end.
func CheckBackup(backup io.Reader) (BackupInfo, error) {
	i, err := raftstore.CheckSnapshot(backup)
	return BackupInfo{i.Index, i.Rows}, err
}
