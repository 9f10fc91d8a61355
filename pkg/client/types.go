package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"time"
)

// DefaultGroup is the group of services that name none.
const DefaultGroup = "DEFAULT_GROUP"

// DefaultCluster is the cluster of instances that name none.
const DefaultCluster = "DEFAULT"

// A Config is plain data, to be read from a file as it is; in JSON its durations
// are nanoseconds. The zero value with Addrs or Endpoint works.
type Config struct {
	// Addrs are the servers: host, host:port with the main (HTTP) port (default
	// 8848), also with http:// or https:// before it and a context path (default
	// /nacos) behind it, or dns+srv:///name. A name stands for all its addresses
	// and is resolved again and again.
	Addrs []string `yaml:"addrs" json:"addrs"`
	// Endpoint is an address server that tells them, instead of Addrs: a URL, or
	// host[:port] (default 8080) for /nacos/serverlist.
	Endpoint string `yaml:"endpoint" json:"endpoint"`
	// Namespace is its id; "" is public.
	Namespace string `yaml:"namespace" json:"namespace"`
	// Username and Password log in; without a name nobody does.
	Username string `yaml:"username" json:"username"`
	Password string `yaml:"password" json:"password"`
	// TLS is for gRPC and HTTP; nil: neither is encrypted. Without a ServerName
	// certificates must be of the names in Addrs.
	TLS *tls.Config `yaml:"-" json:"-"`
	// GRPCPortOffset is from the main port to that of gRPC; 0: 1000.
	GRPCPortOffset int `yaml:"grpcPortOffset" json:"grpcPortOffset"`
	// AppName says whose client it is: the header "app", the label AppName.
	AppName string `yaml:"appName" json:"appName"`
	// Labels of the connection, for whoever looks at a server's clients.
	Labels map[string]string `yaml:"labels" json:"labels"`

	// CacheDir keeps the last list of each service, below naming/<namespace>;
	// "": starling in the user's cache directory, "off": nowhere.
	CacheDir string `yaml:"cacheDir" json:"cacheDir"`
	// LoadCacheAtStart: what is there is served until the servers have spoken.
	LoadCacheAtStart bool `yaml:"loadCacheAtStart" json:"loadCacheAtStart"`
	// FailoverDir has lists that operators have put there, which come before all
	// others while the switch is on; "": naming/<namespace>/failover below
	// CacheDir, "off": none.
	FailoverDir string `yaml:"failoverDir" json:"failoverDir"`
	// KeepLast: a list without a healthy instance does not replace one that has
	// some. It protects against a server that has lost everything, but hides it when
	// the last instance has gone.
	KeepLast bool `yaml:"keepLast" json:"keepLast"`

	// RequestTimeout is of one attempt, of which a call makes up to three; 0: 3 s.
	RequestTimeout time.Duration `yaml:"requestTimeout" json:"requestTimeout"`
	// PollInterval is after how long without a word of the server a subscribed
	// service is asked for; 0: 60 s, negative: never.
	PollInterval time.Duration `yaml:"pollInterval" json:"pollInterval"`
	// IdleTTL is how long a service that is only read stays subscribed; 0: 30
	// minutes, negative: for ever.
	IdleTTL time.Duration `yaml:"idleTTL" json:"idleTTL"`
}

// A State is what a client can do now.
type State int

const (
	Connecting State = iota // there is no connection yet, or none any more for a short while
	Ready                   // connected; what is registered and subscribed is, or is about to be, at the server
	Degraded                // without a connection for longer than 5 s: lists are from before
	Closed                  // Close or Shutdown has been called
)

// A Registration is an instance that a client publishes. The zero values of what
// is not an address are those that most want.
type Registration struct {
	IP      string
	Port    int
	Cluster string // "" is DEFAULT
	// Weight is its share of the traffic; 0 means 1, ZeroWeight none at all.
	Weight     float64
	ZeroWeight bool
	Metadata   map[string]string
	Disabled   bool // it is not to be used: servers do not show it
	Unhealthy  bool // shown, but not chosen by Select and Pick
	// Persistent: it stays without its client, and the servers check its health.
	Persistent bool
}

// A ServiceID names a service within the client's namespace.
type ServiceID struct {
	Group string // never ""
	Name  string
}

func (s ServiceID) String() string { return s.Group + "@@" + s.Name }

// An Instance is one of a service's, as a server has told it.
type Instance struct {
	ID        string // made by the server
	IP        string
	Port      int
	Cluster   string  // never ""
	Weight    float64 // its share of the traffic; 0: none
	Healthy   bool
	Enabled   bool
	Ephemeral bool
	Metadata  map[string]string // never nil
}

// Clone is a copy that shares nothing.
func (i Instance) Clone() Instance {
	i.Metadata = maps.Clone(i.Metadata)
	return i
}

// A Source is where a list comes from, and so what it is worth.
type Source int

const (
	FromServer   Source = iota // pushed or asked for on a connection that stands
	FromStale                  // from a server, but there is no connection now: see Snapshot.AsOf
	FromDisk                   // what an earlier process has kept
	FromFailover               // put there by an operator
)

// A Snapshot is a list of a service's instances at one moment.
type Snapshot struct {
	Service   ServiceID
	Instances []Instance // by cluster, ip, port
	Source    Source
	// AsOf is when a server confirmed it last, by this machine's clock; of a file
	// the time that it was written.
	AsOf time.Time
	// Protected: too few are healthy, so the server shows all as healthy.
	Protected bool
}

// An Event is what a watcher is told: the list as it is now, and what differs
// from the one that the same watcher saw before: Removed as they were, Modified as
// they are. All are the receiver's own copies.
type Event struct {
	Snapshot                 Snapshot
	Added, Removed, Modified []Instance
	First                    bool // all are added; there may be none
}

var (
	// ErrClosed: the client, the watcher or the lease has ended.
	ErrClosed = errors.New("client closed")
	// ErrNotConnected: no server could be reached in time.
	ErrNotConnected = errors.New("not connected to any server")
	// ErrNoInstances: the service has none that could be picked.
	ErrNoInstances = errors.New("no instance to pick")
	// ErrUnauthorized: the servers do not accept the credentials, or not for this.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrInvalid: the arguments make no sense; no server was asked, or one says so.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnsupported: the connected server cannot do this.
	ErrUnsupported = errors.New("not supported by the server")
)

// A ServerError is a refusal of a server. It is ErrInvalid, ErrUnauthorized or
// ErrUnsupported to errors.Is where it means that.
type ServerError struct {
	ResultCode int // of the response; over HTTP its status
	Code       int // errorCode, which is more precise
	Message    string
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("the server refuses: %s (code %d)", e.Message, e.Code)
}

func (e *ServerError) Is(target error) bool {
	switch target {
	case ErrUnauthorized:
		return e.Code == 403 || e.Code == 401
	case ErrInvalid:
		return e.Code == 400 || e.ResultCode == 400 || e.Code >= 20000 && e.Code < 30000
	case ErrUnsupported:
		return e.Code == 404 || e.Code == 410 || e.Code == 501 || e.Code == 302
	}
	return false
}
