package node

import (
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDefaultOptionsAreValid(t *testing.T) {
	o := DefaultOptions()
	o.Name = "n1" // the machine of the test may have none
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	if o.GRPCPort != 9848 || o.Advertise != "127.0.0.1" || o.Listen == nil || o.Logger == nil {
		t.Errorf("not filled in: %+v", o)
	}
	if err := o.Validate(); err != nil {
		t.Errorf("valid once, not twice: %v", err)
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	f := func(flag, reason string, change func(*Options)) {
		t.Helper()
		o := DefaultOptions()
		o.Name = "n1"
		change(&o)
		err := o.Validate()
		if err == nil {
			t.Errorf("--%s: accepted", flag)
		} else if !strings.HasPrefix(err.Error(), "--"+flag+": ") || !strings.Contains(err.Error(), reason) {
			t.Errorf("--%s (%s): %v", flag, reason, err)
		}
	}
	f("name", "is empty", func(o *Options) { o.Name = "" })
	f("name", `"a b"`, func(o *Options) { o.Name = "a b" })
	f("name", "up to 128", func(o *Options) { o.Name = strings.Repeat("a", 129) })
	f("data-dir", "empty", func(o *Options) { o.DataDir = "" })
	f("bind", "without a port", func(o *Options) { o.Bind = "127.0.0.1:8848" })
	f("bind", "brackets", func(o *Options) { o.Bind = "[::1]" })
	f("bind", "", func(o *Options) { o.Bind = "" })
	f("bind", "must be an IP address", func(o *Options) { o.Bind = "300.1.1.1" })
	f("bind", "must be an IP address", func(o *Options) { o.Bind = "10.0.0" })
	f("advertise", "must be an IP address", func(o *Options) { o.Advertise = "10.0.0.256" })
	f("advertise", "unspecified", func(o *Options) { o.Advertise = "0.0.0.0" })
	f("advertise", "unspecified", func(o *Options) { o.Advertise = "::" })
	f("advertise", "without a port", func(o *Options) { o.Advertise = "host:1" })

	f("port", "from 1001 to 64534", func(o *Options) { o.Port = 1000 })
	f("port", "from 1001 to 64534", func(o *Options) { o.Port = 64535 })
	f("port", "-1", func(o *Options) { o.Port = -1 })
	f("grpc-port", "from 1 to 65535", func(o *Options) { o.GRPCPort = 65536 })
	f("grpc-port", "from 1 to 65535", func(o *Options) { o.GRPCPort = -1 })
	f("grpc-port", "HTTP", func(o *Options) { o.GRPCPort = 8848 })
	f("grpc-port", "between nodes", func(o *Options) { o.GRPCPort = 9849 })
	f("grpc-port", "Raft", func(o *Options) { o.GRPCPort = 7848 })
	f("grpc-port", "gossip", func(o *Options) { o.GRPCPort = 7946 })

	f("peer-port", "gRPC for clients", func(o *Options) { o.PeerPort = 9848 })
	f("raft-port", "gossip", func(o *Options) { o.RaftPort = 7946 })
	f("gossip-port", "from 1 to", func(o *Options) { o.GossipPort = 70000 })

	f("join", "main port", func(o *Options) { o.Join = []string{"10.0.0.2:7"} })
	f("join", "main port", func(o *Options) { o.Join = []string{"http://a"} })
	f("join", "HOST", func(o *Options) { o.Join = []string{"a b"} })
	f("join", "HOST", func(o *Options) { o.Join = []string{""} })
	f("expect", "needs --join", func(o *Options) { o.Expect = 3 })
	f("expect", "at least one", func(o *Options) { o.Expect = -1 })
	f("peer-cert", "belong together", func(o *Options) { o.PeerCert = "x" })
	f("gossip-key-file", "--insecure-cluster", func(o *Options) { o.Bind, o.Join = "10.0.0.1", []string{"10.0.0.2"} })
	f("drop-memory", "--self-preservation", func(o *Options) { o.SelfPreservation = 9 * time.Minute })
	f("lease-silent", "--lease-max", func(o *Options) { o.LeaseMax = 20 * time.Second })
	f("probe-timeout", "--probe-interval", func(o *Options) { o.ProbeTimeout = time.Second })

	f("push-window", "--push-window-max", func(o *Options) { o.PushWindow = 3 * time.Second })
	f("beat-delete", "--beat-timeout", func(o *Options) { o.BeatDelete = 10 * time.Second })
	f("drain-close-delay", "--drain-timeout", func(o *Options) { o.DrainTimeout = time.Second })
	f("history-per-service", "from 1 to 65536", func(o *Options) { o.HistoryPerService = 0 })
	f("history-bytes", "from 65536", func(o *Options) { o.HistoryBytes = 1000 })
	f("max-request-bytes", "from 65536", func(o *Options) { o.MaxRequestBytes = 1 << 31 })
}

func TestValidateNamesAllThatIsWrong(t *testing.T) {
	o := DefaultOptions()
	o.Port, o.Bind, o.BeatCheck, o.Join = 1, "a:b", 0, []string{"x:1"}
	err := o.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, flag := range []string{"--port: ", "--bind: ", "--beat-check: ", "--join: "} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not in: %v", flag, err)
		}
	}
}

// A duration that is not in Timers would have neither a flag nor a range.
func TestTimersAreComplete(t *testing.T) {
	var o Options
	listed := map[*time.Duration]string{}
	for _, timer := range o.Timers() {
		if listed[timer.Value] != "" {
			t.Errorf("--%s and --%s are one field", timer.Flag, listed[timer.Value])
		}
		listed[timer.Value] = timer.Flag
		if timer.Min <= 0 || timer.Min > timer.Max || timer.Usage == "" {
			t.Errorf("--%s: %+v", timer.Flag, timer)
		}
	}
	v := reflect.ValueOf(&o).Elem()
	for i := range v.NumField() {
		field, ok := v.Field(i).Addr().Interface().(*time.Duration)
		if ok && field != &o.ClockOffset && listed[field] == "" {
			t.Errorf("field %s is not in Timers", v.Type().Field(i).Name)
		}
	}
	// Each end of each range is refused when passed.
	for i := range o.Timers() {
		for _, end := range []func(Timer) time.Duration{
			func(t Timer) time.Duration { return t.Min - 1 },
			func(t Timer) time.Duration { return t.Max + 1 },
		} {
			o := DefaultOptions()
			timer := o.Timers()[i]
			*timer.Value = end(timer)
			if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--"+timer.Flag+": ") {
				t.Errorf("--%s %v: %v", timer.Flag, *timer.Value, err)
			}
		}
	}
}

func TestFirstAddress(t *testing.T) {
	f := func(want string, cidrs ...string) {
		t.Helper()
		var addrs []net.Addr
		for _, c := range cidrs {
			ip, n, err := net.ParseCIDR(c)
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, &net.IPNet{IP: ip, Mask: n.Mask}) // as net.InterfaceAddrs returns them
		}
		if got := firstAddress(addrs); got != want {
			t.Errorf("%v: got %q, want %q", cidrs, got, want)
		}
	}
	f("10.0.0.5", "127.0.0.1/8", "::1/128", "fe80::1/64", "10.0.0.5/24", "192.168.1.1/24")
	f("10.0.0.5", "127.0.0.1/8", "2001:db8::1/64", "10.0.0.5/24")
	f("2001:db8::1", "127.0.0.1/8", "fe80::1/64", "2001:db8::1/64", "2001:db8::2/64")
	f("", "127.0.0.1/8", "169.254.0.1/16", "fe80::1/64")
	f("")
}

func TestAdvertise(t *testing.T) {
	f := func(bind, advertise, want string) {
		t.Helper()
		o := DefaultOptions()
		o.Name, o.Bind, o.Advertise = "n1", bind, advertise
		if err := o.Validate(); err != nil {
			t.Error(err)
		} else if o.Advertise != want {
			t.Errorf("bind %s, advertise %s: got %s, want %s", bind, advertise, o.Advertise, want)
		}
	}
	f("10.0.0.5", "", "10.0.0.5")
	f("::1", "", "::1")
	f("localhost", "", "localhost")
	f("node1", "10.example.com", "10.example.com")
	f("0.0.0.0", "node-1.example.com", "node-1.example.com")
	f("::", "2001:db8::1", "2001:db8::1")
}
