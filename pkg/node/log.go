package node

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
