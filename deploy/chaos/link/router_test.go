package link

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be a program that makes a network and is killed
// before it can remove it.
func TestMain(m *testing.M) {
	if os.Getenv("LINK_TEST_DIES") == "" {
		goleak.VerifyTestMain(m)
		return
	}
	r, err := NewRouter()
	if err == nil {
		err = r.Add("left")
	}
	if err == nil {
		err = r.Nameserver("192.0.2.1")
	}
	sleep := r.Command("left", "sleep", "1000")
	if err == nil {
		err = sleep.Start()
	}
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
	fmt.Println(r.namespace("left"), sleep.Process.Pid)
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func newRouter(t testing.TB, ends ...string) *Router {
	t.Helper()
	if err := RouterAvailable(); err != nil {
		t.Skip(err)
	}
	r, err := NewRouter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, end := range ends {
		if err := r.Add(end); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// at calls f where an end is: the sockets that it opens are the end's.
func at(r *Router, end string, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread is never unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		done <- func() error {
			if space := r.namespace(end); space != "" {
				fd, err := unix.Open(filepath.Join(spaces, space), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
					return err
				}
			}
			return f()
		}()
	}()
	return <-done
}

func listen(t testing.TB, r *Router, end string) (l net.Listener) {
	t.Helper()
	err := at(r, end, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(r.Bind(end), "0"))
		return err
	})
	if err != nil {
		t.Fatalf("listening at %s: %v", end, err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func listenUDP(t testing.TB, r *Router, end string) (c net.PacketConn) {
	t.Helper()
	err := at(r, end, func() (err error) {
		c, err = net.ListenPacket("udp", net.JoinHostPort(r.Bind(end), "0"))
		return err
	})
	if err != nil {
		t.Fatalf("listening at %s: %v", end, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tryDial(r *Router, end, network, address string, timeout time.Duration) (c net.Conn, err error) {
	err = at(r, end, func() (err error) {
		c, err = net.DialTimeout(network, address, timeout)
		return err
	})
	return c, err
}

func dial(t testing.TB, r *Router, end, network, address string) net.Conn {
	t.Helper()
	c, err := tryDial(r, end, network, address, 20*time.Second)
	if err != nil {
		t.Fatalf("dialling %s from %s: %v", address, end, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connect is both ends of a TCP connection.
func connect(t testing.TB, r *Router, from, to string) (client, server net.Conn) {
	t.Helper()
	l := listen(t, r, to)
	client = dial(t, r, from, "tcp", l.Addr().String())
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func set(t testing.TB, r *Router, from, to string, rule Rule) {
	t.Helper()
	if err := r.Set(from, to, rule); err != nil {
		t.Fatal(err)
	}
}

// arrives sends one datagram, which has to come next.
func arrives(t testing.TB, from, to net.PacketConn) {
	t.Helper()
	text := fmt.Sprint(rand.Uint64())
	if _, err := from.WriteTo([]byte(text), to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	to.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, _, err := to.ReadFrom(buf)
	if err != nil || string(buf[:n]) != text {
		t.Fatalf("sent %s from %v to %v, got %q, %v", text, from.LocalAddr(), to.LocalAddr(), buf[:n], err)
	}
}

// vanishes sends a datagram and waits until the router has counted it.
func vanishes(t testing.TB, r *Router, from, to string, a, b net.PacketConn) {
	t.Helper()
	before := r.Counters()[Pair(from, to)]
	if _, err := a.WriteTo([]byte("nobody gets this"), b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram in a cut was counted", func() bool {
		return r.Counters()[Pair(from, to)].Cut > before.Cut
	})
	if after := r.Counters()[Pair(from, to)]; after.Passed != before.Passed {
		t.Fatalf("from %s to %s passed %d packets in a cut", from, to, after.Passed-before.Passed)
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("in 20 s it did not come to be that ", what)
		}
	}
}

// ping sends one ICMP echo request and is the time until the answer.
func ping(t testing.TB, r *Router, from, to string) time.Duration {
	t.Helper()
	var c net.PacketConn
	err := at(r, from, func() (err error) {
		c, err = net.ListenPacket("ip4:icmp", r.Bind(from))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	message := []byte{8, 0, 0, 0, 0, 1, 0, 1}
	binary.BigEndian.PutUint16(message[2:], ^uint16(8<<8+1+1)) // checksum
	start := time.Now()
	if _, err := c.WriteTo(message, &net.IPAddr{IP: net.ParseIP(r.Bind(to))}); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(start.Add(20 * time.Second))
	for buf := make([]byte, 100); ; {
		n, peer, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("pinging %s from %s: %v", to, from, err)
		}
		if n == len(message) && buf[0] == 0 && peer.String() == r.Bind(to) {
			return time.Since(start)
		}
	}
}

func TestEndsReachEachOther(t *testing.T) {
	r := newRouter(t, "a", "b", "clients-go")
	ends := []string{"a", "b", "clients-go", Host}
	for _, from := range ends {
		for _, to := range ends {
			if from == to {
				continue
			}
			ping(t, r, from, to)
			arrives(t, listenUDP(t, r, from), listenUDP(t, r, to))
			client, server := connect(t, r, from, to)
			go client.Write([]byte("hello\n"))
			if line, err := bufio.NewReader(server).ReadString('\n'); line != "hello\n" {
				t.Fatalf("from %s to %s: %q, %v", from, to, line, err)
			}
			if ip, _, _ := net.SplitHostPort(server.RemoteAddr().String()); ip != r.Address(from) {
				t.Errorf("at %s %s has the address %s, not %s", to, from, ip, r.Address(from))
			}
		}
	}
	// Its own address works too, and what is refused is refused.
	connect(t, r, "a", "a")
	if _, err := tryDial(r, "a", "tcp", net.JoinHostPort(r.Bind("b"), "1"), 20*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling a port that nobody listens at: %v", err)
	}
	if _, err := tryDial(r, "a", "tcp", "192.0.2.1:80", time.Second); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("dialling out of the network: %v", err)
	}
}

func TestCutIsOneWay(t *testing.T) {
	r := newRouter(t, "a", "b", "c")
	a, b, c := listenUDP(t, r, "a"), listenUDP(t, r, "b"), listenUDP(t, r, "c")
	client, server := connect(t, r, "a", "b")
	set(t, r, "a", "b", Rule{Cut: true})

	vanishes(t, r, "a", "b", a, b)
	arrives(t, b, a)
	for _, both := range [][2]net.PacketConn{{a, c}, {c, a}, {b, c}, {c, b}} {
		arrives(t, both[0], both[1])
	}
	l := listen(t, r, "b")
	var timeout net.Error
	if _, err := tryDial(r, "a", "tcp", l.Addr().String(), 300*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("dialling through a cut: %v, want silence", err)
	}

	// TCP stalls, and goes on after the cut.
	if _, err := client.Write([]byte("late\n")); err != nil {
		t.Fatal(err)
	}
	server.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := server.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes came through a cut, %v", n, err)
	}
	set(t, r, "a", "b", Rule{})
	server.SetReadDeadline(time.Now().Add(20 * time.Second))
	if line, err := bufio.NewReader(server).ReadString('\n'); line != "late\n" {
		t.Errorf("after the cut: %q, %v", line, err)
	}
	arrives(t, a, b)
}

func TestCutLosesWhatIsOnTheWay(t *testing.T) {
	r := newRouter(t, "a", "b")
	a, b := listenUDP(t, r, "a"), listenUDP(t, r, "b")
	set(t, r, "a", "b", Rule{Delay: time.Minute})
	if _, err := a.WriteTo([]byte("on the way"), b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	p := r.ports["a"].to[r.ports["b"].last].Load()
	eventually(t, "the datagram is held", func() bool {
		q := p.queue.Load()
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.packets) == 1
	})
	set(t, r, "a", "b", Rule{Cut: true})
	set(t, r, "a", "b", Rule{})
	arrives(t, a, b) // nothing before this
	if c := r.Counters()[Pair("a", "b")]; c.Passed != 1 || c.Cut != 1 {
		t.Errorf("counted are %+v", c)
	}
}

func TestLoss(t *testing.T) {
	r := newRouter(t, "a", "b")
	a, b := listenUDP(t, r, "a"), listenUDP(t, r, "b")
	set(t, r, "a", "b", Rule{Loss: 0.3})
	const sent = 10000
	for range sent {
		if _, err := a.WriteTo([]byte("x"), b.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		// The sender must not outrun the switch, whose queue would lose some too.
		time.Sleep(time.Microsecond)
	}
	eventually(t, "all are counted", func() bool {
		c := r.Counters()[Pair("a", "b")]
		return c.Passed+c.Lost == sent
	})
	// 3000 ± 6 × √(10000 × 0.3 × 0.7)
	if c := r.Counters()[Pair("a", "b")]; c.Lost < 3000-275 || c.Lost > 3000+275 {
		t.Errorf("of %d packets %d were lost", sent, c.Lost)
	}
	if c := r.Counters()[Pair("b", "a")]; c.Lost != 0 {
		t.Errorf("on the way back %d packets were lost", c.Lost)
	}
}

func TestTCPSurvivesLoss(t *testing.T) {
	r := newRouter(t, "a", "b")
	lossy := Rule{Loss: 0.1, Delay: time.Millisecond, Jitter: 2 * time.Millisecond}
	client, server := connect(t, r, "a", "b") // a lost SYN takes seconds
	set(t, r, "a", "b", lossy)
	set(t, r, "b", "a", lossy)
	transfer(t, client, server, 300<<10)
	if c := r.Counters()[Pair("a", "b")]; c.Lost == 0 || c.Delayed == 0 {
		t.Errorf("counted are %+v", c)
	}
}

// transfer sends bytes and compares them on arrival; it is the time until the last.
func transfer(t testing.TB, from, to net.Conn, size int) time.Duration {
	t.Helper()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	start := time.Now()
	failed := make(chan error, 1)
	go func() {
		_, err := from.Write(sent)
		failed <- err
	}()
	got := make([]byte, size)
	to.SetReadDeadline(start.Add(2 * time.Minute))
	n, err := io.ReadFull(to, got)
	took := time.Since(start)
	if err := errors.Join(err, <-failed); err != nil {
		t.Fatalf("after %d of %d bytes: %v", n, size, err)
	}
	if !bytes.Equal(sent, got) {
		t.Fatal("other bytes arrived than were sent")
	}
	return took
}

func TestDelay(t *testing.T) {
	r := newRouter(t, "a", "b")
	const delay = 50 * time.Millisecond
	shortest := func() time.Duration {
		return min(ping(t, r, "a", "b"), ping(t, r, "a", "b"), ping(t, r, "a", "b"))
	}
	if rtt := shortest(); rtt > delay {
		t.Errorf("a round trip without a delay took %v", rtt)
	}
	set(t, r, "a", "b", Rule{Delay: delay})
	if rtt := shortest(); rtt < delay || rtt > 2*delay {
		t.Errorf("a round trip with a delay of %v in one direction took %v", delay, rtt)
	}
	set(t, r, "b", "a", Rule{Delay: delay})
	if rtt := shortest(); rtt < 2*delay || rtt > 3*delay {
		t.Errorf("a round trip with a delay of %v in both directions took %v", delay, rtt)
	}
	set(t, r, "a", "b", Rule{})
	set(t, r, "b", "a", Rule{})
	if rtt := shortest(); rtt > delay {
		t.Errorf("a round trip after the delays took %v", rtt)
	}
}

func TestRate(t *testing.T) {
	r := newRouter(t, "a", "b")
	client, server := connect(t, r, "a", "b")
	const rate, size = 1 << 20, 1 << 20
	set(t, r, "a", "b", Rule{Rate: rate})
	// Headers are 4 % of a full packet. Less than a second would be against the
	// rule, much more would mean that TCP finds no way through. What only takes
	// too long is tried again: the machine may have had more to do.
	soon := func(what string, limit time.Duration, do func() time.Duration) {
		t.Helper()
		for try := range 5 {
			took := do()
			if took <= limit {
				return
			}
			t.Logf("try %d: %d bytes %s took %v", try+1, size, what, took)
		}
		t.Errorf("%d bytes %s always took more than %v", size, what, limit)
	}
	soon(fmt.Sprintf("at %d a second", rate), 4*time.Second, func() time.Duration {
		took := transfer(t, client, server, size)
		if took < time.Second {
			t.Errorf("%d bytes at %d a second took %v", size, rate, took)
		}
		return took
	})
	soon("the other way, where there is no limit,", time.Second, func() time.Duration { return transfer(t, server, client, size) })
}

func TestEndsComeAndGoUnderTraffic(t *testing.T) {
	r := newRouter(t, "a", "b")
	client, server := connect(t, r, "a", "b")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reading, flowing := make(chan error, 1), make(chan error, 1)
	go func() { // copies until the connection is closed
		_, err := io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{server})
		reading <- err
	}()
	go func() {
		buf := make([]byte, 64<<10)
		for ctx.Err() == nil {
			if _, err := client.Write(buf); err != nil {
				flowing <- err
				return
			}
		}
		flowing <- client.Close()
	}()
	given := map[string]bool{r.Bind("a"): true, r.Bind("b"): true}
	for i := range 5 {
		if err := r.Add("c"); err != nil {
			t.Fatal(err)
		}
		if given[r.Bind("c")] {
			t.Fatalf("the address %s was given again", r.Bind("c"))
		}
		given[r.Bind("c")] = true
		// The removed one has a rule, packets that wait, and a process.
		a, c := listenUDP(t, r, "a"), listenUDP(t, r, "c")
		arrives(t, a, c)
		set(t, r, "a", "c", Rule{Delay: time.Minute})
		if _, err := a.WriteTo([]byte("too late"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		sleep := r.Command("c", "sleep", "1000")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		if err := r.Remove("c"); err != nil {
			t.Fatal(err)
		}
		if err := sleep.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("a process at an end that was removed: %v", err)
		}
		if got := r.Counters()[Pair("a", "c")].Passed; got < uint64(i+1) {
			t.Errorf("%d packets are known of an end that was removed", got)
		}
		for _, err := range []error{r.Set("a", "c", Rule{}), r.Remove("c"), r.Command("c", "true").Run()} {
			if err == nil {
				t.Error("there still is an end that was removed")
			}
		}
	}
	stop()
	if err := errors.Join(<-flowing, <-reading); err != nil {
		t.Error(err)
	}
}

func TestMistakesAreRefused(t *testing.T) {
	r := newRouter(t, "a", "b")
	for what, err := range map[string]error{
		"a name twice":      r.Add("a"),
		"the host":          r.Add(Host),
		"a path":            r.Add("../x"),
		"no name":           r.Add(""),
		"removing the host": r.Remove(Host),
		"a loop":            r.Set("a", "a", Rule{}),
		"nobody":            r.Set("a", "nobody", Rule{}),
		"a loss of 2":       r.Set("a", "b", Rule{Loss: 2}),
		"a negative delay":  r.Set("a", "b", Rule{Delay: -1}),
		"a negative jitter": r.Set("a", "b", Rule{Jitter: -1}),
		"a negative rate":   r.Set("a", "b", Rule{Rate: -1}),
		"no command":        r.Command("a").Run(),
		"a name server":     r.Nameserver("dns.test"),
	} {
		if err == nil {
			t.Errorf("%s was not refused", what)
		}
	}
	r.next = lastByte + 1
	if err := r.Add("c"); err == nil {
		t.Error("there is a 255th address")
	}
}

func TestNameserver(t *testing.T) {
	r := newRouter(t, "a")
	// One that has started before, which prints the file for each line it is sent.
	old := r.Command("a", "sh", "-c", "while read x; do cat /etc/resolv.conf; echo; echo end; done")
	in, err := old.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := old.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	ask := func() string {
		fmt.Fprintln(in)
		for text := ""; ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "end\n" {
				return strings.TrimSpace(text)
			}
			text += line
		}
	}
	if got := ask(); strings.Contains(got, "nameserver") {
		t.Errorf("before, /etc/resolv.conf has %q", got)
	}
	want := "nameserver " + r.Bind(Host)
	if err := r.Nameserver(r.Bind(Host)); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != want {
		t.Errorf("to a process that runs, /etc/resolv.conf has %q, want %q", got, want)
	}
	in.Close()
	if err := old.Wait(); err != nil {
		t.Error(err)
	}
	if err := r.Add("b"); err != nil { // later
		t.Fatal(err)
	}
	for _, end := range []string{"a", "b"} {
		if got, err := r.Command(end, "cat", "/etc/resolv.conf").Output(); strings.TrimSpace(string(got)) != want {
			t.Errorf("at %s, /etc/resolv.conf has %q (%v), want %q", end, got, err, want)
		}
	}
	if got, err := r.Command(Host, "cat", "/etc/resolv.conf").Output(); err != nil || strings.Contains(string(got), want) {
		t.Errorf("the host's own /etc/resolv.conf has %q, %v", got, err)
	}
}

// traces are what there is of a name.
func traces(t testing.TB, name string) (found []string) {
	t.Helper()
	for _, dir := range []string{spaces, etc, "/sys/class/net"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), name) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	return found
}

func TestCloseLeavesNothing(t *testing.T) {
	r := newRouter(t, "a", "b")
	if err := r.Nameserver("192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	set(t, r, "a", "b", Rule{Delay: time.Minute, Rate: 1000})
	set(t, r, "b", "a", Rule{Jitter: time.Second})
	a, b := listenUDP(t, r, "a"), listenUDP(t, r, "b")
	if _, err := a.WriteTo([]byte("never arrives"), b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	sleep := r.Command("a", "sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	if found := traces(t, r.name); len(found) != 5 { // two ends' namespaces and files, the host's device
		t.Errorf("before closing there are %v", found)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if found := traces(t, r.name); len(found) != 0 {
		t.Errorf("after closing there are %v", found)
	}
	if err := sleep.Wait(); err == nil {
		t.Error("a process outlived the router")
	}
	if err := r.Add("c"); err == nil {
		t.Error("an end was added to a closed router")
	}
	if err := r.Set("a", "b", Rule{}); err == nil {
		t.Error("a rule was set at a closed router")
	}
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}

func TestLeftoversOfTheKilledGo(t *testing.T) {
	if err := RouterAvailable(); err != nil {
		t.Skip(err)
	}
	dying := exec.Command(os.Args[0])
	dying.Env = append(os.Environ(), "LINK_TEST_DIES=1")
	out, err := dying.Output()
	var space string
	var pid int
	if n, _ := fmt.Sscan(string(out), &space, &pid); n != 2 || err == nil {
		t.Fatalf("%q, %v", out, err)
	}
	name := strings.TrimSuffix(space, "-left")
	if found := traces(t, name); len(found) != 2 {
		t.Errorf("a killed program left %v", found)
	}
	newRouter(t)
	if found := traces(t, name); len(found) != 0 {
		t.Errorf("the next one left %v", found)
	}
	// It is killed, though not waited for here: its parent is gone.
	eventually(t, "what ran there is gone", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return err != nil || bytes.Contains(status, []byte("State:\tZ"))
	})
}

// BenchmarkTCP copies over one connection.
func BenchmarkTCP(b *testing.B) {
	for _, way := range []struct {
		name string
		rule Rule
	}{
		{"plain", Rule{}},
		{"delayed", Rule{Delay: time.Millisecond}},
	} {
		b.Run(way.name, func(b *testing.B) {
			r := newRouter(b, "a", "b")
			client, server := connect(b, r, "a", "b")
			set(b, r, "a", "b", way.rule)
			buf := make([]byte, 1<<20)
			b.SetBytes(int64(len(buf)))
			done := make(chan struct{})
			go func() {
				defer close(done)
				// Read and written, not spliced.
				io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{server})
			}()
			start := time.Now()
			for b.Loop() {
				if _, err := client.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			client.Close()
			<-done
			took, counts := time.Since(start).Seconds(), r.Counters()
			there, back := counts[Pair("a", "b")], counts[Pair("b", "a")]
			b.ReportMetric(float64(there.Passed+back.Passed)/took, "packets/s")
			b.ReportMetric(float64(there.Bytes)*8/took/1e9, "Gbit/s")
		})
	}
}

// BenchmarkForward is what the switch itself needs for a packet, without the
// kernel.
func BenchmarkForward(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	from, to := &port{last: 11}, &port{last: 12, tun: null}
	from.to[12].Store(&pair{from: from, to: to})
	packet := make([]byte, mtu)
	packet[0] = 0x45
	copy(packet[16:], []byte{10, 1, 2, 12})
	for b.Loop() {
		from.forward(packet, [3]byte{10, 1, 2})
	}
}
