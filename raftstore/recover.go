package raftstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

const (
	generationFile = "generation" // which history of the cluster the log belongs to
	discardFile    = "discard"    // the log does not count any more: it is moved away at the next start
	bootstrapFile  = "bootstrap"  // this node is making the group
	format         = 1            // of the directory
	// The upper half of a generation counts the recoveries, the lower half is
	// random: two nodes that were recovered independently of each other have
	// two histories, and one of them gives way.
	generationShift = 32
)

func newGeneration(old uint64) uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return (old>>generationShift+1)<<generationShift | uint64(binary.BigEndian.Uint32(b[:]))
}

// readGeneration is 0 if there is none.
func readGeneration(dir string) (uint64, error) {
	g, _, err := readHistory(dir)
	return g, err
}

// readHistory reads the generation, and the cluster that it is of; "": that was
// not known yet.
func readHistory(dir string) (uint64, string, error) {
	path := filepath.Join(dir, generationFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 3 || fields[0] != "starling-raft" {
		return 0, "", fmt.Errorf("%w: %s is not what a node writes", ErrCorrupt, path)
	}
	if v, err := strconv.Atoi(fields[1]); err != nil || v > format {
		return 0, "", fmt.Errorf("%w: %s says format %s, this release knows %d", ErrNewerLog, path, fields[1], format)
	}
	g, err := strconv.ParseUint(fields[2], 10, 64)
	if err != nil || g == 0 {
		return 0, "", fmt.Errorf("%w: %s is not what a node writes", ErrCorrupt, path)
	}
	cluster := ""
	if len(fields) > 3 {
		cluster = fields[3]
	}
	return g, cluster, nil
}

func writeGeneration(dir string, g uint64, cluster string) error {
	return writeFile(dir, generationFile, strings.TrimSpace(fmt.Sprintf("starling-raft %d %d %s", format, g, cluster))+"\n")
}

// writeFile replaces a file as a whole; it is on disk afterwards.
func writeFile(dir, name, text string) error {
	path := filepath.Join(dir, name)
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return explain(path, err)
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return explain(path, err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return explain(dir, err)
	}
	return explain(dir, errors.Join(d.Sync(), d.Close()))
}

// adopt joins a generation if this node has none yet, and says which it has.
func (s *Store) adopt(g uint64) uint64 {
	s.adopting.Lock()
	defer s.adopting.Unlock()
	if own := s.generation.Load(); own != 0 {
		return own
	}
	// It is on disk before anything of that generation is.
	if err := writeGeneration(s.opts.Dir, g, s.opts.ClusterID()); err != nil {
		s.fail(err)
		return 0
	}
	s.generation.Store(g)
	return g
}

// heardGeneration is told what somebody at the Raft port says. Anybody can say
// anything there where nothing is encrypted, and a log is thrown away for it:
// so the members are asked.
func (s *Store) heardGeneration(g uint64) {
	if own := s.generation.Load(); own != 0 && g > own {
		s.doubt.Store(true)
		s.Changed()
	}
}

// readopt leaves a generation that is not that of the others, as long as this
// node has nothing of it.
func (s *Store) readopt(g uint64) {
	s.adopting.Lock()
	defer s.adopting.Unlock()
	if own := s.generation.Load(); own == 0 || own == g || s.raft.LastIndex() > 0 || s.ended.Load() != nil {
		return
	}
	if _, err := os.Lstat(filepath.Join(s.opts.Dir, bootstrapFile)); err == nil {
		return
	}
	if err := writeGeneration(s.opts.Dir, g, s.opts.ClusterID()); err != nil {
		s.fail(err)
		return
	}
	s.generation.Store(g)
}

// sawGeneration is told which generation another node of the cluster has.
func (s *Store) sawGeneration(g uint64) {
	s.adopting.Lock()
	defer s.adopting.Unlock()
	own := s.generation.Load()
	if own == 0 || g <= own || s.ended.Load() != nil {
		return
	}
	if err := writeFile(s.opts.Dir, discardFile, fmt.Sprintln(g)); err != nil {
		s.fail(err)
		return
	}
	s.end(&ending{roleSuperseded, fmt.Errorf("the cluster is at generation %d, this node was at %d", g>>generationShift, own>>generationShift)})
}

// Info is what the log of a node holds that is not running.
type Info struct {
	Generation          uint64
	LastIndex, LastTerm uint64
	Servers             []Server // Alive is not known
	Rows                map[string]int
	LogBytes            int64
}

// unseen is for tables that nobody reads.
type unseen struct{}

func (unseen) Commit([]registry.Change) {}

// Inspect reads the log of a node that is not running, and changes nothing.
// Entries that may not have been committed are taken for committed.
func Inspect(dir string) (Info, error) {
	info, err := inspect(dir)
	if err != nil {
		return Info{}, fmt.Errorf("raftstore: %w", err)
	}
	return info, nil
}

func inspect(dir string) (info Info, err error) {
	generation, err := readGeneration(dir)
	if err != nil {
		return info, err
	}
	path := filepath.Join(dir, logFile)
	if _, err := os.Stat(path); err != nil {
		return info, fmt.Errorf("there is no log in %s: %w", dir, err)
	}
	if generation == 0 {
		return info, fmt.Errorf("the log in %s is empty: the node has never been in a group", dir)
	}
	info.Generation = generation >> generationShift
	f := newFSM(unseen{}, registry.NewClock(0, 0), zap.NewNop())
	// The directory of the snapshots may not be there, and is not to be made.
	var c raft.Configuration
	var index uint64
	if _, err := os.Stat(filepath.Join(dir, snapshotDir)); err == nil {
		snaps, err := openSnapshots(dir, false, newBridge(zap.NewNop()))
		if err != nil {
			return info, err
		}
		metas, err := snaps.List()
		if err != nil {
			return info, err
		}
		if len(metas) > 0 {
			_, r, err := snaps.Open(metas[0].ID)
			if err != nil {
				return info, err
			}
			if err := f.Restore(r); err != nil {
				return info, errors.Join(err, r.Close())
			}
			c, index = metas[0].Configuration, metas[0].Index
			info.LastIndex, info.LastTerm = metas[0].Index, metas[0].Term
		}
	}
	at, err := checkLog(path, index)
	if err != nil {
		return info, err
	}
	info.LogBytes = at.bytes
	err = guard(path, func() error {
		o := boltOptions()
		o.ReadOnly = true
		bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: o})
		if err != nil {
			return explain(path, err)
		}
		defer bolt.Close()
		for i := max(at.first, index+1); i <= at.last; i++ {
			var l raft.Log
			if err := readLog(bolt, i, &l); err != nil {
				return err
			}
			switch l.Type {
			case raft.LogConfiguration:
				c = raft.DecodeConfiguration(l.Data)
				fallthrough
			case raft.LogCommand:
				f.Apply(&l)
			}
			info.LastIndex, info.LastTerm = l.Index, l.Term
		}
		return nil
	})
	if err != nil {
		return info, err
	}
	info.Servers = servers(c, nil)
	info.Rows = f.rows()
	return info, nil
}

// Recover makes the log of this node that of the cluster, with this node as
// the only voter, after a quorum was lost for good: everything in it counts as
// committed. The node must not be running. The others of the old group give up
// their logs when they meet it.
func Recover(dir, id string) (Info, error) {
	info, err := recoverLog(dir, id)
	if err != nil {
		return Info{}, fmt.Errorf("raftstore: %w", err)
	}
	return info, nil
}

func recoverLog(dir, id string) (Info, error) {
	if id == "" || len(id) > maxHelloString {
		return Info{}, errors.New("recover: the id of the node is missing")
	}
	// The node may be running: this tells.
	if _, err := inspect(dir); err != nil {
		return Info{}, advise(err)
	}
	generation, cluster, err := readHistory(dir)
	if err != nil {
		return Info{}, err
	}
	if err := checkSpace(dir); err != nil {
		return Info{}, err
	}
	bridge := newBridge(zap.NewNop())
	snaps, err := openSnapshots(dir, true, bridge)
	if err != nil {
		return Info{}, err
	}
	snaps.done = func(shot, int64, error) {}
	var failure error
	log, err := openLog(filepath.Join(dir, logFile), false, 1<<62, func(err error) { failure = err })
	if err != nil {
		return Info{}, err
	}
	defer log.close()
	// First the generation: a node with a new one and the old log talks to
	// nobody, and can be recovered again. One with the old generation and a
	// group of its own would be a second cluster.
	if err := writeGeneration(dir, newGeneration(generation), cluster); err != nil {
		return Info{}, err
	}
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(id)
	c.Logger = bridge
	_, transport := raft.NewInmemTransport(raft.ServerAddress(id))
	defer transport.Close()
	err = guard(dir, func() error {
		return raft.RecoverCluster(c, newFSM(unseen{}, registry.NewClock(0, 0), zap.NewNop()), log, log, snaps, transport,
			raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(id), Address: raft.ServerAddress(id)}}})
	})
	if failure != nil {
		err = failure
	}
	if err != nil {
		return Info{}, fmt.Errorf("recover: %w", err)
	}
	if err := log.close(); err != nil {
		return Info{}, err
	}
	// A node that was told to give up its log keeps it now.
	if err := os.Remove(filepath.Join(dir, discardFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return Info{}, err
	}
	return inspect(dir)
}
