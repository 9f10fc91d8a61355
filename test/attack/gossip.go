package main

import (
	"bytes"
	"compress/lzw"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bytes of msgpack, as memberlist writes its messages.
func mpString(s string) []byte { return append([]byte{0xda, byte(len(s) >> 8), byte(len(s))}, s...) }

func mpInt(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xce}, n) }

func mpMap(pairs ...[]byte) []byte {
	return bytes.Join(append([][]byte{{0x80 | byte(len(pairs)/2)}}, pairs...), nil)
}

func gossipGarbage(f *field) (string, error) {
	var packets [][]byte
	for kind := range 256 {
		for _, size := range []int{0, 1, 2, 17, 300, 1400} {
			b := make([]byte, 1+size)
			rand.Read(b)
			b[0] = byte(kind)
			packets = append(packets, b)
		}
	}
	var bomb bytes.Buffer
	w := lzw.NewWriter(&bomb, lzw.LSB, 8)
	w.Write(make([]byte, 64<<20))
	w.Close()
	compressed := append([]byte{9}, mpMap(mpString("Algo"), []byte{0}, mpString("Buf"), append(mpInt(uint32(bomb.Len()))[:0:0], append([]byte{0xdb, byte(bomb.Len() >> 24), byte(bomb.Len() >> 16), byte(bomb.Len() >> 8), byte(bomb.Len())}, bomb.Bytes()...)...))...)
	nested := []byte{8}
	for range 2000 { // a compound message in a compound message …
		nested = append([]byte{7, 1, byte(len(nested) >> 8), byte(len(nested))}, nested...)
	}
	huge := [][]byte{
		append([]byte{6}, mpMap(mpString("Nodes"), mpInt(1<<31-1), mpString("UserStateLen"), mpInt(1<<31-1), mpString("Join"), []byte{0xc3})...),
		append([]byte{6}, mpMap(mpString("Nodes"), mpInt(0), mpString("UserStateLen"), mpInt(1<<31-1), mpString("Join"), []byte{0xc3})...),
		append([]byte{8}, mpMap(mpString("UserMsgLen"), mpInt(1<<31-1))...),
		append([]byte{8}, mpMap(mpString("UserMsgLen"), mpInt(10<<20))...),
		{6, 0xdf, 0xff, 0xff, 0xff, 0xff}, {8, 0xdb, 0xff, 0xff, 0xff, 0xff}, {4, 0xdb, 0x7f, 0xff, 0xff, 0xff}, {9, 0xdf, 0x7f, 0xff, 0xff, 0xff},
		{10, 0xff, 0xff, 0xff, 0xff}, {10, 0, 1, 0, 0}, compressed, nested, {244, 255}, {244, 3, 'a', 'b'}, {12, 0, 0, 0, 0, 8}, {7, 255}, {7, 1, 255, 255},
	}
	for _, b := range huge {
		for range 20 {
			packets = append(packets, b)
		}
	}
	for _, s := range f.nodes {
		conn, err := net.Dial("udp", s.gossipAddr())
		if err != nil {
			return "", err
		}
		for n, p := range packets {
			if len(p) < 60_000 {
				_, _ = conn.Write(p)
			}
			if n%100 == 99 {
				time.Sleep(time.Millisecond)
			}
		}
		conn.Close()
	}
	// Streams: the same, and some that stay open.
	var wg sync.WaitGroup
	sem := make(chan struct{}, 64)
	var conns []net.Conn
	for n := range 1200 {
		p := packets[mrand.IntN(len(packets))]
		if n < 4*len(huge) {
			p = huge[n%len(huge)]
		}
		sem <- struct{}{}
		conn, err := net.Dial("tcp", f.nodes[n%3].gossipAddr())
		if err != nil {
			return "", err
		}
		if n%20 == 0 {
			conns = append(conns, conn)
			_, _ = conn.Write(p)
			<-sem
			continue
		}
		wg.Go(func() {
			defer func() { <-sem }()
			defer conn.Close()
			_, _ = conn.Write(p)
			conn.(*net.TCPConn).CloseWrite()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	wg.Wait()
	for _, c := range conns {
		_ = c.SetDeadline(time.Now().Add(8 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			return "", errors.New("a stream that says no more is open after 8 s")
		}
		c.Close()
	}
	return fmt.Sprintf("%d packets, 1,200 streams", 3*len(packets)), nil
}

func gossipUser(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	raw := func(id string) []byte { b, _ := hex.DecodeString(id); return b }
	from := func(kind byte, id string, body ...byte) []byte {
		return append(append([]byte{kind}, raw(id)...), body...)
	}
	short := 0
	for n := range 17 {
		for range 5 {
			short++
			if err := tr.user(s, true, make([]byte, n)); err != nil {
				return "", err
			}
		}
	}
	for n := range 60 {
		msgs := [][]byte{
			from(0x99, tr.id), from(0, tr.id), // of unknown kinds
			from(0x12, tr.id, 1, 2, 3),                                                           // leaves, but which life?
			from(0x10, tr.id, 0xff, 0xff), from(0x11, tr.id, bytes.Repeat([]byte{0xff}, 900)...), // broken messages
			from(0x10, randomID(), 1), from(0x11, randomID(), 1), from(0x13, randomID(), 1), // of nobody
			from(0x10, f.members[0].ID, 1), from(0x12, f.members[0].ID, 0, 0, 0, 0, 0, 0, 0, 1), // of the node itself
			from(0x13, tr.id, raw(f.members[1].ID)...), from(0x14, tr.id, raw(f.members[1].ID)...), // b is dead, is it not?
			from(0x14, tr.id), from(0x13, tr.id, bytes.Repeat([]byte{1}, 1000)...),
		}
		for _, m := range msgs {
			if err := tr.user(s, n%2 == 0, m); err != nil {
				return "", err
			}
		}
	}
	if err := t.grown(droppedMessage("malformed"), float64(short-5)+60); err != nil { // memberlist itself drops empty ones
		return "", err
	}
	if err := t.grown(droppedMessage("stranger"), 100); err != nil {
		return "", err
	}
	if err := t.grown(refusedMessage("malformed"), 60); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d messages", short+60*14), f.agree(f.ctx, 8*time.Second)
}

// keys attacks a cluster that has a secret.
func keys(f *field) (string, error) {
	dir := filepath.Join(f.dir, "keys")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	key := func(name, secret string) string {
		file := filepath.Join(dir, name)
		_ = os.WriteFile(file, []byte(secret+"\n"), 0o600)
		return file
	}
	right := key("right", "correct horse battery staple 0123456789")
	wrong := key("wrong", "incorrect horse battery staple 012345678")
	port, err := freePorts()
	if err != nil {
		return "", err
	}
	join := fmt.Sprintf("--join=127.0.0.1:%d", port)
	keep := func(name string, port int, settings ...string) (*server, error) {
		return f.start(name, port, settings...)
	}
	a, err := keep("keys-a", port, "--gossip-key-file="+right)
	if err != nil {
		return "", err
	}
	defer a.kill()
	if err := a.ready(f.ctx, 20*time.Second); err != nil {
		return "", err
	}
	t, err := a.tally()
	if err != nil {
		return "", err
	}
	// Two more processes: one without a key, one with another.
	var strangers []*server
	for name, settings := range map[string][]string{"keys-none": nil, "keys-wrong": {"--gossip-key-file=" + wrong}} {
		p, err := freePorts()
		if err != nil {
			return "", err
		}
		s, err := keep(name, p, append(settings, join)...)
		if err != nil {
			return "", err
		}
		defer s.kill()
		strangers = append(strangers, s)
	}
	// The peer port: nothing without TLS, nothing with a certificate of one's
	// own making, whoever one says to be.
	for range 20 {
		st, err := openSync(a.peerAddr(), marshal(hello(randomID(), 1, "", 1)), true)
		if err == nil {
			st.close()
			return "", errors.New("a Hello without TLS was accepted")
		}
		if c := status.Code(err); c != codes.Unavailable {
			return "", fmt.Errorf("a Hello without TLS: %w", err)
		}
	}
	if err := keylessRaft(a); err != nil {
		return "", err
	}
	conn, err := net.Dial("udp", a.gossipAddr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	for n := range 2000 {
		b := make([]byte, 1+n%1400)
		rand.Read(b)
		b[0] = []byte{0, 1, 4, 7, 8, 10}[n%6]
		_, _ = conn.Write(b)
	}
	for n := range 200 {
		c, err := net.Dial("tcp", a.gossipAddr())
		if err != nil {
			return "", err
		}
		b := make([]byte, 100)
		rand.Read(b)
		b[0] = []byte{10, 6, 8, 0}[n%4]
		copy(b[1:], []byte{0, 0, 0, 90})
		_, _ = c.Write(b)
		c.Close()
	}
	time.Sleep(6 * time.Second) // they try to join again
	for _, s := range append(strangers, a) {
		ms, _, err := s.members(f.ctx)
		if err != nil {
			return "", err
		}
		if len(ms) != 1 {
			return "", fmt.Errorf("%s knows %d members", s.dir, len(ms))
		}
	}
	lines, err := t.logged()
	if err != nil {
		return "", err
	}
	if n := containsAll(lines, `"level":"warn"`) + containsAll(lines, `"level":"error"`); n > 25 {
		return "", fmt.Errorf("%d warnings and errors were logged, see %s", n, a.logFile())
	}
	return "nobody got in", nil
}

// keylessRaft knows all that a hello says, and not the secret.
func keylessRaft(a *server) error {
	ms, cluster, err := a.members(context.Background())
	if err != nil || len(ms) != 1 {
		return fmt.Errorf("%d members, %v", len(ms), err)
	}
	st, err := a.raft(context.Background())
	if err != nil {
		return err
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: ms[0].ID}, DNSNames: []string{ms[0].ID, "starling"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return err
	}
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	for name, config := range map[string]*tls.Config{"without TLS": nil, "without a certificate": {InsecureSkipVerify: true}, "with another secret": {InsecureSkipVerify: true, Certificates: []tls.Certificate{own}}} {
		err := parallel(20, func(int) error {
			c, err := net.DialTimeout("tcp", a.raftAddr(), callTimeout)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(8 * time.Second))
			if config != nil {
				c = tls.Client(c, config)
			}
			_, _ = c.Write(raftHello{1 << 32, cluster, randomID(), ms[0].ID}.bytes())
			answer, err := io.ReadAll(c)
			if bytes.Contains(answer, []byte(raftMagic)) || isTimeout(err) {
				return fmt.Errorf("the Raft port %s: %q %v", name, answer, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if now, err := a.raft(context.Background()); err != nil || now.Role != st.Role || now.Term != st.Term {
		return fmt.Errorf("the log: %+v became %+v, %v", st, now, err)
	}
	return nil
}
