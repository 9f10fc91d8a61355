package httpapi

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Limit bounds the connections that a listener hands out, in all and from one
// remote address. Who comes beyond is told so and closed; the listener goes on
// accepting, so that a flood from one address is nobody else's waiting time.
func Limit(l net.Listener, total, perAddress int, reg prometheus.Registerer) net.Listener {
	limited := &limitListener{Listener: l, total: total, perAddress: perAddress, open: map[string]int{}}
	f := promauto.With(reg)
	limited.refused = f.NewCounter(prometheus.CounterOpts{Namespace: "starling", Subsystem: "http", Name: "refused_connections_total",
		Help: "Connections refused because there are too many."})
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "http", Name: "connections", Help: "Open HTTP connections."}, func() float64 {
		limited.mu.Lock()
		defer limited.mu.Unlock()
		return float64(limited.all)
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "http", Name: "connections_limit", Help: "How many there may be: --max-connections."},
		func() float64 { return float64(total) })
	return limited
}

type limitListener struct {
	net.Listener
	total, perAddress int
	refused           prometheus.Counter

	mu   sync.Mutex
	all  int
	open map[string]int // by remote address
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			host = c.RemoteAddr().String()
		}
		why := l.admit(host)
		if why == "" {
			return &limitedConn{Conn: c, release: func() { l.release(host) }}, nil
		}
		l.refused.Inc()
		// A new socket takes these few bytes without waiting.
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain;charset=UTF-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(why), why)
		_ = c.Close()
	}
}

// admit counts a connection, or says why there is no room for it.
func (l *limitListener) admit(host string) (why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all >= l.total:
		return fmt.Sprintf("over the limit of %d HTTP connections of this node (--max-connections)", l.total)
	case l.open[host] >= l.perAddress:
		return fmt.Sprintf("over the limit of %d HTTP connections from %s (--max-connections-per-address)", l.perAddress, host)
	}
	l.all++
	l.open[host]++
	return ""
}

func (l *limitListener) release(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.open[host]--; l.open[host] == 0 {
		delete(l.open, host)
	}
}

type limitedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

func (c *limitedConn) Close() error {
	c.once.Do(c.release)
	return c.Conn.Close()
}
