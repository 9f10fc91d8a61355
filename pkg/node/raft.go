package node

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
	"github.com/starling-registry/starling/raftstore"
)

// ErrSuperseded ends a node whose log is from before a recovery.
var ErrSuperseded = errors.New("the cluster went on without this node's log (starling recover): with the next start the log is set aside, and the node gets what the others have")

// raftOptions has everything but what Start must fill in.
func (o *Options) raftOptions(dir *DataDir) (raftstore.Options, error) {
	r := raftstore.DefaultOptions()
	var err error
	if r.Dir, err = dir.LogDir(); err != nil {
		return r, err
	}
	r.Heartbeat, r.Election, r.Lease = o.RaftHeartbeat, o.RaftHeartbeat, o.RaftHeartbeat/2
	r.ReplaceAfter, r.RemoveLeftAfter = o.RaftReplaceAfter, o.RaftRemoveAfter
	r.SnapshotEvery, r.SnapshotEntries, r.SnapshotBytes = o.RaftSnapshotEvery, uint64(o.RaftSnapshotEntries), int64(o.RaftSnapshotBytes)
	// Who wants snapshots sooner wants a shorter log.
	r.TrailingEntries = min(r.TrailingEntries, r.SnapshotEntries)
	r.CaughtUpWithin = o.CatchUp
	r.NoSync = o.NoSync
	return r, nil
}

// encrypted is the port for Raft, encrypted as all that nodes say to each
// other.
func encrypted(l net.Listener, members *cluster.Cluster) net.Listener {
	if c := members.ServerTLS(); c != nil {
		return tls.NewListener(l, c)
	}
	return l
}

// raftDial reaches a node by its id, wherever it is now (cluster C5).
func (o *Options) raftDial(members *cluster.Cluster) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, id string) (net.Conn, error) {
		v := members.View()
		if v == nil {
			return nil, errors.New("membership has not begun yet")
		}
		m, ok := v.Member(id)
		if !ok {
			return nil, errors.New("no member has the id " + id)
		}
		conn, err := o.Dial(ctx, net.JoinHostPort(m.Host, strconv.Itoa(m.RaftPort)))
		if err != nil {
			return nil, err
		}
		config := members.ClientTLS(id, m.Host)
		if config == nil {
			return conn, nil
		}
		secret := tls.Client(conn, config)
		if err := secret.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return secret, nil
	}
}

// raftCall calls a method of another node, and says so if nothing was sent.
func raftCall(members *cluster.Cluster) func(context.Context, string, string, []byte) ([]byte, error) {
	return func(ctx context.Context, to, method string, body []byte) ([]byte, error) {
		answer, err := members.Call(ctx, to, method, body)
		if errors.Is(err, cluster.ErrUnreachable) || errors.Is(err, cluster.ErrUnknown) || errors.Is(err, cluster.ErrStopped) {
			err = fmt.Errorf("%w: %w", raftstore.ErrNotSent, err)
		}
		return answer, err
	}
}

func raftMembers(v *cluster.View) []raftstore.Member {
	if v == nil {
		return nil
	}
	ms := make([]raftstore.Member, len(v.Members))
	for i, m := range v.Members {
		ms[i] = raftstore.Member{ID: m.ID, Alive: m.State == cluster.Alive, Left: m.State == cluster.Left, Since: m.Since, Commands: m.Commands}
	}
	return ms
}

// found keeps the id of the cluster. The node that has made it is to begin the
// log, once for all founders (cases C25): that it writes down first, should it
// crash in between.
func found(dir *DataDir, id string, founders []string) error {
	var err error
	if founders != nil {
		err = dir.SaveFounders(firstVoters(dir.NodeID, founders))
	} else {
		err = dir.ForgetFounders() // of an id that could not be kept: others have made one since
	}
	if err != nil {
		return err
	}
	return dir.SaveClusterID(id)
}

// beginLog begins the log if there are founders.
func beginLog(dir *DataDir, store *raftstore.Store) error {
	founders := dir.Founders()
	if founders == nil {
		return nil
	}
	if err := store.Bootstrap(founders); err != nil {
		return err
	}
	return dir.LogBegun()
}

// firstVoters are the founders that get a vote (design §8), the node that makes
// the cluster among them. The others follow.
func firstVoters(self string, founders []string) []string {
	most := raftstore.WantedVoters(len(founders))
	voters := []string{self}
	for _, id := range founders {
		if id != self && len(voters) < most {
			voters = append(voters, id)
		}
	}
	slices.Sort(voters)
	return voters
}

// clusterID is the id of the cluster that the node belongs to; "" while it looks
// for others. A node that is to be a cluster of its own makes one here, and so
// does one whose data directory is of a release that kept no log.
func (o *Options) clusterID(dir *DataDir) (string, error) {
	id, err := dir.ClusterID()
	if err == nil && id == "" && dir.holdsLog() {
		return "", fmt.Errorf("data directory %s: the file cluster-id is gone, and the log (raft) is of that cluster: copy it from another node of the cluster, or move the whole directory away to join as a new node", dir.path)
	}
	if err != nil || o.expected() != 1 || len(o.Join) > 0 || len(dir.Members()) > 0 || dir.logHasBegun() {
		return id, err
	}
	if id == "" {
		made := make([]byte, 16)
		rand.Read(made) // never fails
		id = hex.EncodeToString(made)
	}
	return id, found(dir, id, []string{dir.NodeID})
}

// Raft tells the log as this node sees it.
func (o *operations) Raft() api.Raft {
	s := o.store.Status()
	r := api.Raft{Cluster: o.clusterID(), Node: o.life.Node, Name: o.opts.Name, At: time.Now().UTC(), Role: s.Role, Leader: s.Leader,
		Term: s.Term, Commit: s.Commit, Applied: s.Applied, Last: s.Last, Digest: hex64(s.Digest), Generation: s.Generation,
		VotersWanted: s.Wanted, Quorum: s.Quorum, AliveVoters: s.AliveVoters, Stale: s.Stale, LogBytes: s.LogBytes,
		Rows: s.Rows, Snapshot: api.RaftSnapshot{At: utc(s.LastSnapshot), Bytes: s.SnapshotSize}, Servers: []api.RaftServer{}}
	r.LeaderName, r.LeaderServer = o.nameAndServer(s.Leader)
	for _, server := range s.Servers {
		as := api.RaftServer{ID: server.ID, Voter: server.Voter}
		if m, ok := o.view().Member(server.ID); ok {
			as.Name, as.State = m.Name, m.State.String()
		}
		r.Servers = append(r.Servers, as)
	}
	return r
}

func (o *operations) nameAndServer(id string) (name, server string) {
	m, ok := o.view().Member(id)
	if !ok {
		return "", ""
	}
	return m.Name, net.JoinHostPort(m.Host, strconv.Itoa(m.HTTPPort))
}

// notLeader refuses what only the leader can do, and says who that is.
func (o *operations) notLeader(leader string) error {
	if leader != "" && leader != o.life.Node {
		name, server := o.nameAndServer(leader)
		return &api.Error{Status: http.StatusConflict, Code: api.CodeNotLeader, Message: "this node does not lead the log, " + name + " does", Hint: "ask " + server, Server: server}
	}
	s := o.store.Status()
	return &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeNoLeader, Message: "the log of the cluster has no leader: " + nacos.NoLeader,
		Hint: noLeaderHint(s.Role, s.Last)}
}

// noLeaderHint says what to do where a node with a log like that knows of no
// leader.
func noLeaderHint(role string, last uint64) string {
	switch {
	case role == api.RoleFailed:
		return "the log of this node failed, its log says why (a full disk?): put that right and start it again"
	case last == 0:
		return "the log has not begun yet: wait until as many nodes are there as --expect says (starling members)"
	}
	return "starling raft shows which voters are missing; if they are gone for good: starling recover"
}

// forPeople is an error without the name of the package that it is from.
type forPeople struct{ error }

func (e forPeople) Error() string { return strings.TrimPrefix(e.error.Error(), "raftstore: ") }

func (e forPeople) Unwrap() error { return e.error }

// logError is an error of the store for somebody who asks over the native API.
func (o *operations) logError(err error) error {
	if e, ok := errors.AsType[*raftstore.NotLeader](err); ok {
		return o.notLeader(e.Leader)
	}
	if err == nil {
		return nil
	}
	err = forPeople{err}
	switch {
	case errors.Is(err, raftstore.ErrNotEmpty):
		return &api.Error{Status: http.StatusConflict, Code: api.CodeNotEmpty, Message: "the cluster has data, which would be lost", Hint: "with force it is replaced, on all nodes"}
	case errors.Is(err, raftstore.ErrNotFound):
		return &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: err.Error(), Hint: "starling raft shows the nodes that the log is kept on"}
	case errors.Is(err, raftstore.ErrInvalid), errors.Is(err, raftstore.ErrDamaged), errors.Is(err, raftstore.ErrNewer):
		return &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: err.Error(), Hint: "the file must be one that starling backup has written, whole"}
	}
	return err
}

func (o *operations) Backup(ctx context.Context, w io.Writer) error {
	return o.logError(o.store.Backup(ctx, w))
}

func (o *operations) Restore(ctx context.Context, backup io.Reader, force bool) (api.Restored, error) {
	if err := o.store.Restore(ctx, backup, force); err != nil {
		return api.Restored{}, o.logError(err)
	}
	s := o.store.Status()
	return api.Restored{Node: o.life.Node, Name: o.opts.Name, Applied: s.Applied, Digest: hex64(s.Digest), Rows: s.Rows}, nil
}

func (o *operations) RemoveMember(ctx context.Context, id string) (api.Removed, error) {
	name, _ := o.nameAndServer(id)
	if m, ok := o.view().Member(id); ok && m.State == cluster.Alive && o.store.Leads() {
		return api.Removed{}, &api.Error{Status: http.StatusConflict, Code: api.CodeConflict, Message: name + " is running", Hint: "stop it first, with SIGTERM"}
	}
	if err := o.store.RemoveServer(ctx, id); err != nil {
		return api.Removed{}, o.logError(err)
	}
	s := o.store.Status()
	r := api.Removed{ID: id, Name: name, Quorum: s.Quorum, AliveVoters: s.AliveVoters}
	for _, server := range s.Servers {
		if server.Voter {
			r.Voters++
		}
	}
	return r, nil
}

// cause is the text of an error of the store without saying that the outcome is
// unknown, as each node does that a write came through.
func cause(err error) string {
	return strings.ReplaceAll(err.Error(), raftstore.ErrUnknownOutcome.Error()+": ", "")
}

// explain is an error of the store for the HTTP API.
func (o *operations) explain(err error) (httpapi.Refusal, bool) {
	r := httpapi.Refusal{Text: cause(err)} // the rest says the code
	for is, code := range map[error]httpapi.RefusalCode{
		raftstore.ErrNoLeader: httpapi.NoLeader, raftstore.ErrUnknownOutcome: httpapi.UnknownOutcome, raftstore.ErrNotUnderstood: httpapi.NotUnderstood,
		raftstore.ErrExists: httpapi.Exists, raftstore.ErrNotFound: httpapi.NotFound, raftstore.ErrNotEmpty: httpapi.NotEmpty,
		raftstore.ErrWrongKind: httpapi.WrongKind, raftstore.ErrInvalid: httpapi.Invalid, registry.ErrEvicted: httpapi.Evicted,
	} {
		if errors.Is(err, is) {
			r.Code = code
		}
	}
	if r.Code == httpapi.NoLeader {
		s := o.store.Status()
		r.Hint = noLeaderHint(s.Role, s.Last)
	}
	return r, r.Code != 0
}

// explainSDK is an error of the store for clients on gRPC.
func explainSDK(err error) grpcapi.Refusal {
	switch {
	case errors.Is(err, raftstore.ErrInvalid):
		return grpcapi.Refusal{Code: nacos.CodeInvalidParam, Text: err.Error()}
	case errors.Is(err, raftstore.ErrWrongKind):
		return grpcapi.Refusal{WrongKind: true}
	case errors.Is(err, registry.ErrEvicted):
		return grpcapi.Refusal{Evicted: true}
	case errors.Is(err, raftstore.ErrNotFound):
		return grpcapi.Refusal{NotFound: true}
	case errors.Is(err, raftstore.ErrNoLeader):
		return grpcapi.Refusal{Code: nacos.CodeServerError, Text: nacos.NoLeader}
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		return grpcapi.Refusal{Code: nacos.CodeServerError, Text: raftstore.ErrUnknownOutcome.Error() + ": " + cause(err)}
	case errors.Is(err, raftstore.ErrNotUnderstood):
		return grpcapi.Refusal{Code: nacos.CodeServerError, Text: err.Error()}
	}
	return grpcapi.Refusal{}
}
