package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

// socketNode is a node on loopback, on ports that the kernel chose.
type socketNode struct {
	*Cluster
	metrics *prometheus.Registry
	mu      sync.Mutex
	got     []string
}

func startSocket(t *testing.T, i int, known []string, change func(*Options)) *socketNode {
	t.Helper()
	n := &socketNode{metrics: prometheus.NewRegistry()}
	o := Options{
		ID: id(i), Name: fmt.Sprint("n", i), Epoch: 1, Version: "test", Wire: 1, ClusterID: "c",
		Bind: "127.0.0.1", Known: known, Keys: [][]byte{[]byte("a secret of the cluster")}, Metrics: n.metrics,
		Handlers: Handlers{
			Message: func(from string, via Via, msg []byte) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.got = append(n.got, fmt.Sprint(from, via, string(msg)))
			},
			Calls: map[string]func(context.Context, string, []byte) ([]byte, error){
				"Forward": func(_ context.Context, from string, b []byte) ([]byte, error) { return append([]byte(from), b...), nil },
			},
		},
	}
	change(&o)
	var err error
	if n.Cluster, err = New(o); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func poll(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 20 s: ", what)
		}
	}
}

func (n *socketNode) streams() (up int) {
	n.Cluster.mu.Lock()
	defer n.Cluster.mu.Unlock()
	for _, p := range n.paths {
		up += btoi(p.in != nil) + btoi(p.out != nil)
	}
	return up
}

func testSockets(t *testing.T, change func(*Options)) {
	// A probe of memberlist ends by its own time-out.
	defer goleak.VerifyNone(t, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
	var nodes []*socketNode
	var known []string
	for i := range 3 {
		n := startSocket(t, i, known, change)
		defer n.Stop()
		nodes = append(nodes, n)
		known = append(known, n.gossipAddr.String())
	}
	poll(t, "streams", func() bool {
		for _, n := range nodes {
			if n.streams() != 4 {
				return false
			}
		}
		return true
	})
	for _, msg := range [][]byte{frameMsg("f"), headMsg("h")} {
		if err := nodes[0].Send(t.Context(), id(1), msg); err != nil {
			t.Error(err)
		}
	}
	if !nodes[0].Broadcast([]byte("g")) {
		t.Error("not gossiped")
	}
	poll(t, "messages", func() bool {
		nodes[1].mu.Lock()
		defer nodes[1].mu.Unlock()
		return len(nodes[1].got) >= 3
	})
	if b, err := nodes[0].Call(t.Context(), id(2), "Forward", []byte("!")); string(b) != id(0)+"!" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if err := nodes[1].Leave(t.Context()); err != nil {
		t.Error(err)
	}
	nodes[1].Stop()
	nodes[2].Stop() // without a word
	poll(t, "left and refused", func() bool {
		a, _ := nodes[0].View().Member(id(1))
		b, _ := nodes[0].View().Member(id(2))
		return a.State == Left && b.State == Refused
	})
	for _, n := range nodes {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestSockets(t *testing.T) { testSockets(t, func(*Options) {}) }

func TestSocketsPlain(t *testing.T) { testSockets(t, func(o *Options) { o.Keys = nil }) }

// Certificates from files, made for the host and not for nodes.
func TestSocketsCertificates(t *testing.T) {
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	must := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	caFile := write("ca", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	certFile := write("cert", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)))
	keyFile := write("key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))
	expires := func(n *socketNode) float64 {
		return (&node{t: t, reg: n.metrics}).count("certificate_expiry_timestamp_seconds")
	}
	a := startSocket(t, 0, nil, func(o *Options) { o.CertFile, o.KeyFile, o.CAFile = certFile, keyFile, caFile })
	if got := expires(a); got != float64(leaf.NotAfter.Unix()) {
		t.Errorf("the certificate ends at %v, said is %v", leaf.NotAfter.Unix(), got)
	}
	a.Stop()
	testSockets(t, func(o *Options) { o.CertFile, o.KeyFile, o.CAFile = certFile, keyFile, caFile })
}

// A node with the right gossip key and another certificate authority gets no
// stream, and neither does one without any.
func TestStrangersGetNoStream(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
	a := startSocket(t, 0, nil, func(*Options) {})
	defer a.Stop()
	b := startSocket(t, 1, []string{a.gossipAddr.String()}, func(o *Options) {})
	defer b.Stop()
	poll(t, "streams", func() bool { return a.streams() == 2 })
	// b's certificates become another cluster's, its gossip does not.
	i, err := newIdentity(&b.opts, [][]byte{[]byte("the secret of somebody else")})
	if err != nil {
		t.Fatal(err)
	}
	b.identity.Store(i)
	for _, n := range []*socketNode{a, b} {
		n.Cluster.mu.Lock()
		var all []*stream
		for _, p := range n.paths {
			all = append(all, p.in, p.out)
		}
		n.Cluster.mu.Unlock()
		for _, s := range all {
			if s != nil {
				s.end(errReplaced)
			}
		}
	}
	time.Sleep(time.Second)
	if a.streams() != 0 || b.streams() != 0 {
		t.Error("streams", a.streams(), b.streams())
	}
	// Both are alive: messages go as reliable ones.
	if err := a.Send(t.Context(), id(1), headMsg("h")); err != nil {
		t.Error(err)
	}
	if _, err := a.Call(t.Context(), id(1), "Forward", nil); err != ErrUnreachable {
		t.Error(err)
	}
}
