package cluster

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Options is what a node is in its cluster. The durations have defaults.
type Options struct {
	ID         string // 32 hex digits
	Name       string // for people
	Epoch      uint64 // of this start
	ClusterID  string // "": not known yet
	Version    string // release
	Wire       uint32 // what the messages on the streams look like; at least 1
	OldestWire uint32 // what is still understood; 0: Wire alone
	Commands   uint32 // version of the commands of the log that it understands

	Bind      string // address to listen on
	Advertise string // address or name that others use; "": Bind, or what the machine has if Bind is unspecified
	HTTPPort  int    // the ports are announced; of these only PeerPort and
	GRPCPort  int    // GossipPort are listened on here. 0 for these two: any.
	PeerPort  int
	RaftPort  int

	GossipPort int

	Join   []string // HOST or HOST:PORT with the main port of a peer; names stand for all their addresses
	Port   int      // main port where Join names none
	Expect int      // members that make a new cluster; 0: only join one
	Known  []string // gossip addresses of earlier members, IP:PORT

	// Secrets of the cluster, at least 16 bytes each: the first is used, all
	// are accepted. None: nothing is encrypted. See ParseKeys.
	Keys [][]byte
	// PEM files that replace the certificates derived from the keys on the
	// streams. All or none.
	CertFile, KeyFile, CAFile string

	Lookup    func(ctx context.Context, host string) ([]netip.Addr, error) // nil: the system's resolver
	Listen    func(network, addr string) (net.Listener, error)             // nil: net.Listen
	Dial      func(ctx context.Context, addr string) (net.Conn, error)     // nil: TCP
	Transport memberlist.Transport                                         // of gossip; nil: UDP and TCP. Stop shuts it down.

	ProbeInterval  time.Duration // 500 ms
	ProbeTimeout   time.Duration // 200 ms
	SuspicionMult  int           // 3
	GossipInterval time.Duration // 100 ms
	RejoinInterval time.Duration // 10 s, ±20 %
	DialTimeout    time.Duration // 1 s
	StallTimeout   time.Duration // 10 s: a stream that takes nothing for so long is closed
	HoldDeath      time.Duration // 10 s: for so long a death is not believed that only this ailing node sees
	ForgetAfter    time.Duration // 24 h after it left or died

	Handlers Handlers
	Logger   *zap.Logger
	Metrics  prometheus.Registerer
}

// Handlers is what a node does with what it hears. Each may be nil. They are
// called without locks.
type Handlers struct {
	// Message hands over a message; msg belongs to the callee. It is called on
	// a goroutine per stream, and on one for all of gossip: while it blocks, a
	// stream stands still, and gossip is dropped.
	Message func(from string, via Via, msg []byte)
	// Connected says that a stream to or from a peer is up. It is called
	// before the first message of the stream and must return soon.
	Connected func(peer string)
	// Pull answers a peer's Pull. send blocks on the peer's credit.
	Pull func(ctx context.Context, from string, req []byte, send func([]byte) error) error
	// Calls are the unary methods by name.
	Calls map[string]func(ctx context.Context, from string, body []byte) ([]byte, error)
	// Members gets every new view, in order, on one goroutine.
	Members func(*View)
	// ClusterID is told the id that was made or adopted, before anybody else
	// is. With an error it is not taken, and comes again. founders are the
	// members for which this node made it, itself included, sorted; nil: it
	// was adopted.
	ClusterID func(id string, founders []string) error
}

// Via is how a message came.
type Via uint8

const (
	Stream Via = iota
	Reliable
	Gossip
)

// State is what is known of a member.
type State uint8

const (
	Alive   State = iota
	Silent        // it stopped answering; it may be stopped, cut off or without power
	Refused       // its process is gone: its ports refuse, or another node has its address
	Left          // it said so before it went
)

func (s State) String() string {
	return [...]string{"alive", "silent", "refused", "left"}[s]
}

// A Member is a node of the cluster.
type Member struct {
	ID, Name   string
	Epoch      uint64
	State      State
	Since      time.Time // of the state
	Self       bool
	Leaving    bool   // it has announced that it leaves
	Host       string // address or name, as announced
	HTTPPort   int
	GRPCPort   int
	PeerPort   int
	RaftPort   int
	GossipPort int
	Version    string
	Wire       uint32
	Commands   uint32 // 0: its release does not say
	// Gossip is where it gossips; for Options.Known of a later start.
	Gossip netip.AddrPort
}

// View is all members, self included, by ID. It is immutable.
type View struct {
	Members []Member
}

// Member finds a member by id.
func (v *View) Member(id string) (Member, bool) {
	for _, m := range v.Members {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// gossipOffset is how far the gossip port lies below the main port.
const gossipOffset = 902

func (o *Options) setDefaults() {
	o.OldestWire = cmp.Or(o.OldestWire, o.Wire)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 500*time.Millisecond)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 200*time.Millisecond)
	o.SuspicionMult = cmp.Or(o.SuspicionMult, 3)
	o.GossipInterval = cmp.Or(o.GossipInterval, 100*time.Millisecond)
	o.RejoinInterval = cmp.Or(o.RejoinInterval, 10*time.Second)
	o.DialTimeout = cmp.Or(o.DialTimeout, time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 10*time.Second)
	o.HoldDeath = cmp.Or(o.HoldDeath, 10*time.Second)
	o.ForgetAfter = cmp.Or(o.ForgetAfter, 24*time.Hour)
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}

func (o *Options) validate() error {
	if !validID(o.ID) {
		return fmt.Errorf("cluster: ID %q: not 32 hex digits in lower case", o.ID)
	}
	if o.Wire == 0 || o.OldestWire > o.Wire {
		return fmt.Errorf("cluster: Wire %d, OldestWire %d", o.Wire, o.OldestWire)
	}
	if len(o.Advertise) > maxHost {
		return fmt.Errorf("cluster: Advertise %q: too long", o.Advertise)
	}
	if len(o.ClusterID) > maxClusterID {
		return fmt.Errorf("cluster: ClusterID %q: too long", o.ClusterID)
	}
	for _, p := range []int{o.HTTPPort, o.GRPCPort, o.PeerPort, o.RaftPort, o.GossipPort} {
		if p < 0 || p > 65535 {
			return fmt.Errorf("cluster: port %d", p)
		}
	}
	if o.Metrics == nil {
		return errors.New("cluster: Metrics is not set")
	}
	if n := btoi(o.CertFile != "") + btoi(o.KeyFile != "") + btoi(o.CAFile != ""); n != 0 && n != 3 {
		return errors.New("cluster: CertFile, KeyFile and CAFile go together")
	}
	for _, j := range o.Join {
		if _, err := parseTarget(j, o.Port); err != nil {
			return err
		}
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func validID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && hex.EncodeToString(b) == id
}
