package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// defaultTTL is what CoreDNS is often set to for small clusters; its own
	// default is 5 s.
	defaultTTL  = time.Second
	closeWithin = 5 * time.Second
)

// A Server answers on UDP and TCP. Its methods may be called at any time, from
// any goroutine.
type Server struct {
	addr string
	udp  *dns.Server
	tcp  *dns.Server
	// served is done when both have ended.
	served sync.WaitGroup
	ctx    context.Context // until Close
	cancel context.CancelFunc

	mu      sync.Mutex
	records map[string]*record // by canonical name
	ttl     time.Duration
	any     Any
	mode    Mode
	log     log
}

type record struct {
	v4, v6 []netip.Addr
	turn   int // of the address that comes first
}

// Any is the answer to a query of type ANY, with which memberlist, for example,
// begins.
type Any int

const (
	// AnyNoData is what the kubernetes plugin of CoreDNS does: no answer, no
	// error.
	AnyNoData Any = iota
	// AnyHINFO is what its plugin "any" does, as RFC 8482 wants it.
	AnyHINFO
	// AnyAll gives all addresses, as servers did once.
	AnyAll
)

// A Mode is how a server fails. The zero Mode: it does not.
type Mode struct {
	silent   bool
	servfail bool
	delay    time.Duration
}

var (
	// Working ends a failure.
	Working = Mode{}
	// Silent is no answer at all, as if packets were lost.
	Silent = Mode{silent: true}
	// ServFail is an answer that says that there is none.
	ServFail = Mode{servfail: true}
)

// Slow delays each answer.
func Slow(by time.Duration) Mode { return Mode{delay: by} }

func (m Mode) String() string {
	switch {
	case m.silent:
		return "silent"
	case m.servfail:
		return "SERVFAIL"
	case m.delay > 0:
		return "slow by " + m.delay.String()
	default:
		return "working"
	}
}

// Serve starts a server at HOST:PORT, both UDP and TCP. Port 0 is a free one.
// Resolvers of systems look at port 53 only.
func Serve(addr string) (*Server, error) {
	listener, conn, err := listen(addr)
	if err != nil {
		return nil, fmt.Errorf("names: %w", err)
	}
	s := &Server{addr: listener.Addr().String(), records: map[string]*record{}, ttl: defaultTTL}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	handler := dns.HandlerFunc(s.answer)
	var started sync.WaitGroup
	started.Add(2)
	s.udp = &dns.Server{PacketConn: conn, Handler: handler, NotifyStartedFunc: started.Done, MsgAcceptFunc: accept}
	s.tcp = &dns.Server{Listener: listener, Handler: handler, NotifyStartedFunc: started.Done, MsgAcceptFunc: accept}
	for _, half := range []*dns.Server{s.udp, s.tcp} {
		// Ends with Shutdown; errors of the sockets are the askers' to see.
		s.served.Go(func() { _ = half.ActivateAndServe() })
	}
	started.Wait()
	return s, nil
}

// listen takes the same port for both.
func listen(addr string) (listener net.Listener, conn net.PacketConn, err error) {
	for range 10 {
		if listener, err = net.Listen("tcp", addr); err != nil {
			return nil, nil, err
		}
		if conn, err = net.ListenPacket("udp", listener.Addr().String()); err == nil {
			return listener, conn, nil
		}
		listener.Close()
	}
	return nil, nil, err
}

// accept is for queries only; the rest is not answered.
func accept(h dns.Header) dns.MsgAcceptAction {
	const response = 1 << 15
	if h.Bits&response != 0 || h.Qdcount != 1 {
		return dns.MsgIgnore
	}
	return dns.MsgAccept
}

// Addr is HOST:PORT.
func (s *Server) Addr() string { return s.addr }

// Set gives a name these addresses and no others. With none the name is there
// and has none, as a service without pods.
func (s *Server) Set(name string, ips ...string) error {
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		return fmt.Errorf("names: %q is no name", name)
	}
	r := new(record)
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		switch {
		case err != nil:
			return fmt.Errorf("names: setting %s: %w", name, err)
		case a.Unmap().Is4():
			r.v4 = append(r.v4, a.Unmap())
		default:
			r.v6 = append(r.v6, a.WithZone(""))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[dns.CanonicalName(name)] = r
	return nil
}

// Remove makes a name unknown.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, dns.CanonicalName(name))
}

// SetTTL is for answers from now on; they have whole seconds. It begins with
// one.
func (s *Server) SetTTL(ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl = ttl
}

// AnswerAny begins with AnyNoData.
func (s *Server) AnswerAny(a Any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.any = a
}

// Fail begins or, with Working, ends a failure. Answers that are delayed
// already stay so.
func (s *Server) Fail(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

// Close ends the server. Queries that wait get no answer.
func (s *Server) Close() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	err := errors.Join(s.udp.ShutdownContext(ctx), s.tcp.ShutdownContext(ctx))
	if err != nil {
		return fmt.Errorf("names: closing: %w", err)
	}
	s.served.Wait()
	return nil
}

// answer is called on a goroutine of its own for each query.
func (s *Server) answer(w dns.ResponseWriter, q *dns.Msg) {
	reply, mode := s.reply(w, q)
	if mode.delay > 0 {
		timer := time.NewTimer(mode.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			return
		}
	}
	switch {
	case mode.silent:
		return
	case mode.servfail:
		reply = new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}
	size := dns.MaxMsgSize
	if w.RemoteAddr().Network() == "udp" {
		size = dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = max(size, int(o.UDPSize()))
		}
	}
	if o := q.IsEdns0(); o != nil && reply.IsEdns0() == nil {
		reply.SetEdns0(dns.DefaultMsgSize, false)
	}
	reply.Truncate(size)
	_ = w.WriteMsg(reply) // whoever asked is gone
}

// reply is what the records say, and how that goes out.
func (s *Server) reply(w dns.ResponseWriter, q *dns.Msg) (reply *dns.Msg, mode Mode) {
	question := q.Question[0]
	name := dns.CanonicalName(question.Name)
	reply = new(dns.Msg).SetReply(q)
	reply.RecursionAvailable = true
	s.mu.Lock()
	defer s.mu.Unlock()
	ttl := uint32(s.ttl.Seconds())
	r := s.records[name]
	query := Query{At: time.Now(), Name: strings.TrimSuffix(name, "."), Type: dns.TypeToString[question.Qtype],
		Net: w.RemoteAddr().Network(), Asker: asker(w.RemoteAddr()), Failure: s.mode}
	switch {
	case r == nil:
		reply.Rcode = dns.RcodeNameError
	default:
		var addrs []netip.Addr
		switch question.Qtype {
		case dns.TypeA:
			addrs = r.v4
		case dns.TypeAAAA:
			addrs = r.v6
		case dns.TypeANY:
			switch s.any {
			case AnyAll:
				addrs = slices.Concat(r.v4, r.v6)
			case AnyHINFO:
				reply.Answer = append(reply.Answer, &dns.HINFO{Hdr: header(question.Name, dns.TypeHINFO, ttl), Cpu: "ANY obsoleted", Os: "See RFC 8482"})
			}
		}
		if len(addrs) > 0 {
			// One after the other comes first, as with CoreDNS's loadbalance.
			turn := r.turn % len(addrs)
			r.turn++
			query.Answer = slices.Concat(addrs[turn:], addrs[:turn])
		}
	}
	s.log.add(query)
	for _, a := range query.Answer {
		if a.Is4() {
			reply.Answer = append(reply.Answer, &dns.A{Hdr: header(question.Name, dns.TypeA, ttl), A: a.AsSlice()})
		} else {
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: header(question.Name, dns.TypeAAAA, ttl), AAAA: a.AsSlice()})
		}
	}
	if len(reply.Answer) == 0 {
		// Tells for how long that there is nothing may be remembered.
		reply.Ns = append(reply.Ns, &dns.SOA{Hdr: header(question.Name, dns.TypeSOA, ttl), Ns: "ns.invalid.", Mbox: "chaos.invalid.",
			Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl})
	}
	return reply, s.mode
}

func header(name string, kind uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

func asker(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}
