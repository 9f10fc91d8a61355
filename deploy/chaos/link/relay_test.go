package link

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// childTask in the environment makes a process of this test a client of a relay.
const childTask = "LINK_TEST_CHILD"

func init() {
	task, address, _ := strings.Cut(os.Getenv(childTask), " ")
	switch task {
	case "":
		return
	case "dial": // and stay until standard input ends
		conn, err := net.Dial("tcp", address)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Fprintln(conn, "child")
		io.Copy(io.Discard, os.Stdin)
	case "mapped": // the same with a socket for IPv6, as Java has them
		a, _ := net.ResolveTCPAddr("tcp4", address)
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())})
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		unix.Write(fd, []byte("child\n"))
		io.Copy(io.Discard, os.Stdin)
	}
	os.Exit(0)
}

// patient is how long a test waits for what must come.
const patient = 20 * time.Second

func newTestRelay(t *testing.T, ends ...string) *Relay {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	r, err := NewRelay(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error("closing:", err)
		}
	})
	for _, e := range ends {
		if err := r.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *Relay) at(end string) string  { return net.JoinHostPort(r.Bind(end), strconv.Itoa(r.port)) }
func (r *Relay) via(end string) string { return net.JoinHostPort(r.Address(end), strconv.Itoa(r.port)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve runs f for each connection that reaches an end's main port. The
// function that it returns says how many there were.
func serve(t *testing.T, address string, f func(*net.TCPConn)) func() int {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	must(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { defer c.Close(); f(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return func() int { mu.Lock(); defer mu.Unlock(); return len(conns) }
}

func echo(c *net.TCPConn) { io.Copy(c, c) }

func dialFront(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp4", address, patient)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// ask sends a line to an echo and gives back how long the answer took.
func ask(t *testing.T, c net.Conn, line string) time.Duration {
	t.Helper()
	start := time.Now()
	c.SetDeadline(start.Add(patient))
	_, err := io.WriteString(c, line)
	must(t, err)
	got := make([]byte, len(line))
	_, err = io.ReadFull(c, got)
	must(t, err)
	if string(got) != line {
		t.Fatalf("sent %q, got %q back", line, got)
	}
	return time.Since(start)
}

// silent fails when anything comes within d.
func silent(t *testing.T, c net.Conn, d time.Duration) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(d))
	b := make([]byte, 1)
	if n, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("expected nothing, got %d bytes and %v", n, err)
	}
	c.SetReadDeadline(time.Time{})
}

func relayEventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

func TestStreamPasses(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	serve(t, r.at("a"), echo)
	c := dialFront(t, r.via("a"))
	ask(t, c, "hello")
	for _, pair := range []string{Pair(Host, "a"), Pair("a", Host)} {
		relayEventually(t, "the bytes of "+pair+" are counted", func() bool {
			got := r.Counters()[pair]
			return got.Passed == 1 && got.Bytes == 5
		})
	}
}

// A cut holds one direction, and what was sent goes on after it.
func TestStreamCutOneWay(t *testing.T) {
	for _, way := range []string{"there", "back"} {
		t.Run(way, func(t *testing.T) {
			r := newTestRelay(t, "a")
			arrived := make(chan []byte, 16)
			serve(t, r.at("a"), func(c *net.TCPConn) {
				io.WriteString(c, "greeting")
				for {
					b := make([]byte, 100)
					n, err := c.Read(b)
					if err != nil {
						return
					}
					arrived <- b[:n]
					c.Write(b[:n])
				}
			})
			c := dialFront(t, r.via("a"))
			b := make([]byte, 8)
			_, err := io.ReadFull(c, b)
			must(t, err)
			if way == "there" {
				must(t, r.Set(Host, "a", Rule{Cut: true}))
				io.WriteString(c, "one")
				silent(t, c, 150*time.Millisecond)
				if len(arrived) != 0 {
					t.Fatalf("%q came through the cut", <-arrived)
				}
				must(t, r.Set(Host, "a", Rule{}))
			} else {
				must(t, r.Set("a", Host, Rule{Cut: true}))
				io.WriteString(c, "one")
				if got := <-arrived; string(got) != "one" {
					t.Fatalf("got %q in the direction that is not cut", got)
				}
				silent(t, c, 150*time.Millisecond)
				must(t, r.Set("a", Host, Rule{}))
			}
			c.SetReadDeadline(time.Now().Add(patient))
			b = make([]byte, 3)
			if _, err := io.ReadFull(c, b); err != nil || string(b) != "one" {
				t.Fatalf("after healing got %q, %v", b, err)
			}
		})
	}
}

// A dial through a cut reaches nobody before it is healed, and never when the
// client has given up.
func TestDialThroughCut(t *testing.T) {
	for _, way := range [][2]string{{Host, "a"}, {"a", Host}} {
		for _, rule := range []Rule{{Cut: true}, {Loss: 1}} {
			t.Run(fmt.Sprintf("%s loss %v", Pair(way[0], way[1]), rule.Loss), func(t *testing.T) {
				r := newTestRelay(t, "a")
				reached := serve(t, r.at("a"), echo)
				must(t, r.Set(way[0], way[1], rule))
				impatient, patientOne := dialFront(t, r.via("a")), dialFront(t, r.via("a"))
				io.WriteString(impatient, "late")
				silent(t, patientOne, 100*time.Millisecond)
				impatient.Close()
				relayEventually(t, "the one who gave up is forgotten", func() bool { return r.Counters()[Pair(Host, "a")].Cut == 1 })
				if reached() != 0 {
					t.Fatal("a dial reached its target through the cut")
				}
				must(t, r.Set(way[0], way[1], Rule{}))
				ask(t, patientOne, "hello")
				if reached() != 1 {
					t.Fatalf("%d dials reached the target, 1 should", reached())
				}
			})
		}
	}
}

func TestStreamDelay(t *testing.T) {
	r := newTestRelay(t, "a")
	serve(t, r.at("a"), echo)
	before := dialFront(t, r.via("a"))
	ask(t, before, "ready")
	const delay = 60 * time.Millisecond
	must(t, r.Set(Host, "a", Rule{Delay: delay}))
	if took := ask(t, before, "one way"); took < delay {
		t.Errorf("a round trip took %v with %v on the way there", took, delay)
	}
	must(t, r.Set("a", Host, Rule{Delay: delay}))
	if took := ask(t, before, "both"); took < 2*delay {
		t.Errorf("a round trip took %v with %v both ways", took, delay)
	}
	// A new connection costs a round trip before the first byte.
	start := time.Now()
	ask(t, dialFront(t, r.via("a")), "new")
	if took := time.Since(start); took < 4*delay {
		t.Errorf("dial and round trip took %v, less than two round trips", took)
	}
	if got := r.Counters()[Pair(Host, "a")].Delayed; got != 3 {
		t.Errorf("%d pieces were counted as delayed, 3 were", got)
	}
	// What waits does not wait longer than the rule that takes its place says.
	must(t, r.Set(Host, "a", Rule{Delay: time.Hour}))
	io.WriteString(before, "now")
	silent(t, before, 50*time.Millisecond)
	must(t, r.Set(Host, "a", Rule{}))
	before.SetReadDeadline(time.Now().Add(patient))
	_, err := io.ReadFull(before, make([]byte, 3))
	must(t, err)
}

// Delay is no limit of the rate: what follows does not wait for what is under way.
func TestStreamDelayIsPipelined(t *testing.T) {
	r := newTestRelay(t, "a")
	serve(t, r.at("a"), echo)
	c := dialFront(t, r.via("a"))
	ask(t, c, "ready")
	must(t, r.Set(Host, "a", Rule{Delay: 100 * time.Millisecond, Jitter: 50 * time.Millisecond}))
	start := time.Now()
	var want []byte
	for i := range 100 {
		line := fmt.Sprintf("line %d\n", i)
		want = append(want, line...)
		io.WriteString(c, line)
		time.Sleep(time.Millisecond)
	}
	got := make([]byte, len(want))
	c.SetReadDeadline(time.Now().Add(patient))
	_, err := io.ReadFull(c, got)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("jitter has changed the order of bytes")
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("100 lines that each take 100 to 150 ms took %v", took)
	}
}

func TestStreamLoss(t *testing.T) {
	r := newTestRelay(t, "a")
	serve(t, r.at("a"), echo)
	c := dialFront(t, r.via("a"))
	ask(t, c, "ready")
	// Of 100 lines none is lost in one run in 10^7. One that is lost seven times in
	// a row takes 25 s, longer than is waited for: of 20 lines one in 30,000 runs.
	must(t, r.Set(Host, "a", Rule{Loss: 0.15}))
	slow := 0
	for i := range 100 {
		lost := r.Counters()[Pair(Host, "a")].Lost
		took := ask(t, c, fmt.Sprintf("line %d", i))
		if took >= dataTimeout {
			slow++
		}
		if now := r.Counters()[Pair(Host, "a")].Lost; now > lost && took < dataTimeout {
			t.Errorf("a line was lost and took %v", took)
		}
		if slow == 3 {
			return
		}
	}
	if slow == 0 {
		t.Error("of 100 lines none was lost with a loss of 15 %")
	}
}

func TestStreamRate(t *testing.T) {
	r := newTestRelay(t, "a")
	var got atomic.Int64
	serve(t, r.at("a"), func(c *net.TCPConn) {
		for b := make([]byte, 1<<16); ; {
			n, err := c.Read(b)
			got.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	// Two connections share it.
	const rate, each = 1 << 20, 256 << 10
	must(t, r.Set(Host, "a", Rule{Rate: rate}))
	start := time.Now()
	for range 2 {
		c := dialFront(t, r.via("a"))
		go c.Write(make([]byte, each))
	}
	relayEventually(t, "all arrives", func() bool { return got.Load() == 2*each })
	took := time.Since(start)
	if least := time.Second * 2 * each / rate; took < least*95/100 || took > 4*least {
		t.Errorf("%d bytes took %v at %d bytes a second", 2*each, took, rate)
	}
	// Without the limit the rest goes at once.
	must(t, r.Set(Host, "a", Rule{Rate: 100}))
	c := dialFront(t, r.via("a"))
	c.Write(make([]byte, 100<<10))
	time.Sleep(10 * time.Millisecond)
	must(t, r.Set(Host, "a", Rule{}))
	relayEventually(t, "the rest arrives", func() bool { return got.Load() == 2*each+100<<10 })
}

// All bytes arrive as they were sent, whatever the rules do meanwhile.
func TestStreamsUnderChangingRules(t *testing.T) {
	r := newTestRelay(t, "a")
	serve(t, r.at("a"), echo)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	stop := make(chan struct{})
	var changing sync.WaitGroup
	for i, way := range [][2]string{{Host, "a"}, {"a", Host}} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		changing.Go(func() {
			for {
				rule := Rule{}
				switch rng.IntN(6) {
				case 0:
					rule.Cut = true
				case 1:
					rule.Delay, rule.Jitter = rand.N(10*time.Millisecond), rand.N(10*time.Millisecond)
				case 2:
					rule.Loss = rng.Float64() / 20
				case 3:
					rule.Rate = 1<<20 + rng.Int64N(32<<20)
				case 4:
					rule = Rule{Loss: 0.01, Delay: time.Millisecond, Rate: 16 << 20}
				}
				if err := r.Set(way[0], way[1], rule); err != nil {
					t.Error(err)
				}
				select {
				case <-time.After(rand.N(20 * time.Millisecond)):
				case <-stop:
					return
				}
			}
		})
	}
	transfers, large, changes := 5000, 4, 10*time.Second
	if testing.Short() {
		transfers, large, changes = 1000, 2, 3*time.Second
	}
	var wg sync.WaitGroup
	work := make(chan int)
	for worker := range 64 {
		rng := rand.New(rand.NewPCG(seed, uint64(100+worker)))
		wg.Go(func() {
			for size := range work {
				if err := relayTransfer(r.via("a"), size, rng); err != nil {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	for range large {
		work <- 8 << 20
	}
	for range transfers {
		work <- rng.IntN(1 << (1 + rng.IntN(16)))
	}
	close(work)
	time.AfterFunc(changes, func() { close(stop) }) // and let the rest go
	changing.Wait()
	must(t, r.Set(Host, "a", Rule{}))
	must(t, r.Set("a", Host, Rule{}))
	wg.Wait()
}

// relayTransfer sends bytes to an echo, closes its half and compares what comes back
// until the echo closes its own.
func relayTransfer(address string, size int, rng *rand.Rand) error {
	c, err := net.DialTimeout("tcp4", address, patient)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(rng.Uint32())
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got := sha256.New()
	n, err := io.Copy(got, c)
	if err := errors.Join(err, <-failed); err != nil {
		return err
	}
	if want := sha256.Sum256(sent); !bytes.Equal(got.Sum(nil), want[:]) {
		return fmt.Errorf("other bytes came back, %d of them", n)
	}
	return nil
}

func TestHalfClose(t *testing.T) {
	r := newTestRelay(t, "a")
	serve(t, r.at("a"), func(c *net.TCPConn) {
		all, err := io.ReadAll(c)
		fmt.Fprintf(c, "%s, %v", all, err)
	})
	for _, rule := range []Rule{{}, {Delay: 20 * time.Millisecond}} {
		must(t, r.Set(Host, "a", rule))
		c := dialFront(t, r.via("a"))
		io.WriteString(c, "all")
		must(t, c.CloseWrite())
		c.SetDeadline(time.Now().Add(patient))
		if got, err := io.ReadAll(c); err != nil || string(got) != "all, <nil>" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	relayEventually(t, "the streams are over", func() bool { return r.streams("a") == 0 })
}

func (r *Relay) streams(end string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ends[end].streams)
}

// A reset goes both ways through, also past a receiver that takes nothing, and
// waits in a cut.
func TestReset(t *testing.T) {
	r := newTestRelay(t, "a")
	ended := make(chan error, 1)
	reader := make(chan bool, 1)
	serve(t, r.at("a"), func(c *net.TCPConn) {
		io.WriteString(c, "x")
		if !<-reader { // the receiver takes nothing, and learns of the end as it writes
			var err error
			for err == nil {
				_, err = c.Write([]byte("y"))
				time.Sleep(time.Millisecond)
			}
			ended <- err
			return
		}
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	first := func() *net.TCPConn {
		c := dialFront(t, r.via("a"))
		_, err := io.ReadFull(c, make([]byte, 1))
		must(t, err)
		return c
	}
	isReset := func(err error) bool {
		return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	}

	c := first()
	reader <- true
	reset(c)
	if err := <-ended; !isReset(err) {
		t.Errorf("the target ended with %v after a reset of the client", err)
	}

	c = first()
	c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for b := make([]byte, 1<<20); ; {
		if _, err := c.Write(b); err != nil {
			break // all buffers are full
		}
	}
	reset(c)
	reader <- false
	if err := <-ended; !isReset(err) {
		t.Errorf("the stalled target ended with %v", err)
	}

	c = first()
	reader <- true
	for _, before := range []string{"", "data"} {
		if before != "" {
			c = first()
			reader <- true
		}
		must(t, r.Set(Host, "a", Rule{Cut: true}))
		io.WriteString(c, before)
		reset(c)
		select {
		case err := <-ended:
			t.Errorf("a reset behind %q came through the cut: %v", before, err)
		case <-time.After(100 * time.Millisecond):
		}
		must(t, r.Set(Host, "a", Rule{}))
		if err := <-ended; !isReset(err) {
			t.Errorf("after healing the target ended with %v", err)
		}
	}
	relayEventually(t, "the streams are over", func() bool { return r.streams("a") == 0 })
}

// A client sees it when the target resets.
func TestResetByTarget(t *testing.T) {
	r := newTestRelay(t, "a")
	serve(t, r.at("a"), func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	})
	c := dialFront(t, r.via("a"))
	io.WriteString(c, "x")
	c.SetReadDeadline(time.Now().Add(patient))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v", err)
	}
}

func TestRefusal(t *testing.T) {
	r := newTestRelay(t, "a")
	refused := func() error {
		c, err := net.DialTimeout("tcp4", r.via("a"), patient)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		return err
	}
	if err := refused(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("nobody listens behind an open front: %v", err)
	}
	must(t, r.Down("a"))
	if err := refused(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the front is down: %v", err)
	}
	// Who is cut off does not learn that the process is gone.
	must(t, r.Set("a", Host, Rule{Cut: true}))
	if err := refused(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the front is down behind a cut: %v", err)
	}
	must(t, r.Set("a", Host, Rule{}))
	if err := refused(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the cut is healed and the front is down: %v", err)
	}
	must(t, r.Up("a"))
	serve(t, r.at("a"), echo)
	ask(t, dialFront(t, r.via("a")), "up again")
}

// What is pushed into a cut, or at a reader that stands still, stays with the
// sender.
func TestMemoryIsBounded(t *testing.T) {
	for _, rule := range []Rule{{Cut: true}, {Rate: 1000}, {Delay: time.Hour}, {}} {
		t.Run(fmt.Sprintf("%+v", rule), func(t *testing.T) {
			r := newTestRelay(t, "a")
			over := make(chan struct{})
			serve(t, r.at("a"), func(c *net.TCPConn) { <-over })
			defer close(over)
			const conns, bytesEach = 16, 64 << 20 // 1 GB
			var clients []*net.TCPConn
			for range conns {
				clients = append(clients, dialFront(t, r.via("a")))
			}
			relayEventually(t, "all are connected", func() bool { return r.joined(Host, "a") == conns })
			must(t, r.Set(Host, "a", rule))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var took atomic.Int64
			var wg sync.WaitGroup
			b := make([]byte, 1<<20)
			for _, c := range clients {
				wg.Go(func() {
					for sent := 0; sent < bytesEach; {
						c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
						n, err := c.Write(b)
						sent += n
						took.Add(int64(n))
						if err != nil {
							return
						}
					}
				})
			}
			wg.Wait()
			runtime.GC()
			runtime.ReadMemStats(&after)
			grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("took %d MB of %d MB, heap grown by %d kB", took.Load()>>20, conns*bytesEach>>20, grown>>10)
			if grown > conns*(maxQueue+4*chunkSize) {
				t.Errorf("the heap has grown by %d kB", grown>>10)
			}
			if took.Load() == conns*bytesEach {
				t.Error("all was taken, where nothing was read")
			}
		})
	}
}

func (r *Relay) joined(from, to string) int {
	d := r.direction(from, to)
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.pipes)
}

// Connections of processes and of their children are told apart, and by that
// the rules that they obey.
func TestOwners(t *testing.T) {
	r := newTestRelay(t, "a", "b", "c", "java")
	lines := make(chan string, 16)
	serve(t, r.at("a"), func(c *net.TCPConn) {
		b := make([]byte, 6)
		if _, err := io.ReadFull(c, b); err == nil {
			lines <- string(b)
		}
		io.Copy(io.Discard, c)
	})
	self, err := os.Executable()
	must(t, err)
	late := false // Started has not been called when it dials
	start := func(end, task string, argv ...string) {
		cmd := r.Command(end, argv...)
		// A process under the race detector waits a second at its end.
		if !late {
			cmd.Env = os.Environ() // so that only Started tells
		}
		cmd.Env = append(cmd.Env, childTask+"="+task+" "+r.via("a"), "GORACE=atexit_sleep_ms=0")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		input, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		if !late {
			r.Started(end, cmd.Process.Pid)
		}
		t.Cleanup(func() { input.Close(); cmd.Wait() })
	}
	count := func(end string) uint64 { return r.Counters()[Pair(end, "a")].Bytes }
	defer func() {
		if t.Failed() {
			t.Logf("%+v", r.Counters())
		}
	}()

	start("b", "dial", self)
	<-lines
	// A grandchild in a group of its own, and one whose parents have all ended; their standard input is
	// this process' pipe.
	start("c", "dial", "sh", "-c", "sh -c 'setsid \"$0\"; true' \"$0\"; true", self)
	<-lines
	start("c", "dial", "sh", "-c", "exec 3<&0; (sleep 0.1; exec \"$0\") <&3 & exit", self)
	<-lines
	start("java", "mapped", self)
	<-lines
	late = true
	start("java", "dial", self)
	<-lines
	late = false
	fmt.Fprintln(dialFront(t, r.via("a")), "owner")
	<-lines
	relayEventually(t, "all is counted as it should", func() bool {
		return count("b") == 6 && count("c") == 12 && count("java") == 12 && count(Host) == 6
	})

	// The rule of one is not that of another.
	must(t, r.Set("b", "a", Rule{Cut: true}))
	start("b", "dial", self)
	start("c", "dial", self)
	<-lines
	select {
	case <-lines:
		t.Error("b came through its cut")
	case <-time.After(100 * time.Millisecond):
	}
	if got := count("c"); got != 18 {
		t.Errorf("c has sent %d bytes, not 18", got)
	}
	must(t, r.Set("b", "a", Rule{}))
	<-lines
}

// A process that has ended leaves no connection to be taken for somebody's.
func TestOwnerGone(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	cmd := exec.Command("sleep", "0")
	must(t, cmd.Start())
	r.Started("b", cmd.Process.Pid)
	cmd.Wait()
	var asked []*question
	for port := range 3 {
		asked = append(asked, &question{
			from:   &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1 + port},
			to:     &net.TCPAddr{IP: net.IPv4(127, 9, 9, 9), Port: 1},
			answer: make(chan answer, 1),
		})
	}
	r.owners.resolve(asked)
	for _, q := range asked {
		if a := <-q.answer; !errors.Is(a.err, errNobody) {
			t.Errorf("a socket that does not exist is %q's, %v", a.end, a.err)
		}
	}
	serve(t, r.at("a"), echo)
	ask(t, dialFront(t, r.via("a")), "host") // sees that the process of b is gone
	r.owners.mu.Lock()
	defer r.owners.mu.Unlock()
	if len(r.owners.processes) != 0 {
		t.Errorf("still known: %v", r.owners.processes)
	}
}

// Both ways to find the inode of a socket say the same.
func TestInodes(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	var asked, again []*question
	for range 100 {
		c := dialFront(t, l.Addr().String())
		q := question{from: c.LocalAddr().(*net.TCPAddr), to: c.RemoteAddr().(*net.TCPAddr)}
		asked, again = append(asked, new(q)), append(again, new(q))
	}
	missing, err := askKernel(asked)
	must(t, err)
	must(t, findInodes(again))
	if len(missing) != 0 {
		t.Logf("this kernel does not tell %d of them", len(missing))
	}
	for i, q := range asked {
		if again[i].inode == "" || again[i].inode == "0" || q.inode != "" && q.inode != again[i].inode {
			t.Errorf("%v: the kernel says inode %q, its table %q", q.from, q.inode, again[i].inode)
		}
	}
}

// gossip is the UDP socket of a node.
func gossip(t *testing.T, r *Relay, end string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(r.Bind(end)), Port: r.port + gossipOffset})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func front(r *Relay, end string) *net.UDPAddr {
	return &net.UDPAddr{IP: net.ParseIP(r.Address(end)), Port: r.port + gossipOffset}
}

// receiveAll reads datagrams until none comes for a while.
func receiveAll(c *net.UDPConn, quiet time.Duration) (all []string) {
	b := make([]byte, 2048)
	for {
		c.SetReadDeadline(time.Now().Add(quiet))
		n, err := c.Read(b)
		if err != nil {
			return all
		}
		all = append(all, string(b[:n]))
	}
}

func TestDatagrams(t *testing.T) {
	r := newTestRelay(t, "a", "b", "c")
	a, b := gossip(t, r, "a"), gossip(t, r, "b")
	b.SetReadBuffer(4 << 20)
	buffer := make([]byte, 2048)

	// There and, to the address that it came from, back.
	a.WriteTo([]byte("ping"), front(r, "b"))
	b.SetReadDeadline(time.Now().Add(patient))
	n, source, err := b.ReadFromUDP(buffer)
	must(t, err)
	if string(buffer[:n]) != "ping" || source.String() != front(r, "a").String() {
		t.Fatalf("got %q from %v, the front of a is %v", buffer[:n], source, front(r, "a"))
	}
	b.WriteTo([]byte("pong"), source)
	a.SetReadDeadline(time.Now().Add(patient))
	n, source, err = a.ReadFromUDP(buffer)
	must(t, err)
	if string(buffer[:n]) != "pong" || source.String() != front(r, "b").String() {
		t.Fatalf("got %q from %v, the front of b is %v", buffer[:n], source, front(r, "b"))
	}

	// One way.
	must(t, r.Set("a", "b", Rule{Cut: true}))
	a.WriteTo([]byte("lost"), front(r, "b"))
	b.WriteTo([]byte("through"), front(r, "a"))
	if got := receiveAll(a, 50*time.Millisecond); !slices.Equal(got, []string{"through"}) {
		t.Errorf("a got %q", got)
	}
	if got := receiveAll(b, 50*time.Millisecond); len(got) != 0 {
		t.Errorf("%q came through the cut", got)
	}
	if got := r.Counters()[Pair("a", "b")].Cut; got != 1 {
		t.Errorf("%d counted as cut", got)
	}
	// Healing brings nothing back.
	must(t, r.Set("a", "b", Rule{}))
	if got := receiveAll(b, 50*time.Millisecond); len(got) != 0 {
		t.Errorf("%q came after the cut", got)
	}
	// From an address that is nobody's it goes nowhere.
	stranger, err := net.DialUDP("udp4", nil, front(r, "b"))
	must(t, err)
	defer stranger.Close()
	io.WriteString(stranger, "?")
	relayEventually(t, "the stranger is counted", func() bool { return r.Counters()[Pair(Host, "b")].Failed == 1 })
}

func TestDatagramLoss(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	a, b := gossip(t, r, "a"), gossip(t, r, "b")
	must(t, r.Set("a", "b", Rule{Loss: 0.3}))
	const sent = 5000
	got := 0
	for i := range sent {
		a.WriteTo([]byte("x"), front(r, "b"))
		if i%100 == 99 { // before a kernel's buffer is full
			relayEventually(t, "all were seen", func() bool {
				c := r.Counters()[Pair("a", "b")]
				return c.Passed+c.Lost == uint64(i+1)
			})
			got += len(receiveAll(b, 5*time.Millisecond))
		}
	}
	got += len(receiveAll(b, 50*time.Millisecond))
	// Mean 3,500, deviation 32.4: six of them.
	if got < 3305 || got > 3695 {
		t.Errorf("of %d %d arrived with a loss of 30 %%", sent, got)
	}
	if c := r.Counters()[Pair("a", "b")]; c.Passed != uint64(got) || c.Lost != uint64(sent-got) {
		t.Errorf("counted %+v, %d arrived", c, got)
	}
}

func TestDatagramDelayAndRate(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	a, b := gossip(t, r, "a"), gossip(t, r, "b")
	must(t, r.Set("a", "b", Rule{Delay: 50 * time.Millisecond, Jitter: 30 * time.Millisecond}))
	start := time.Now()
	for i := range 50 {
		a.WriteTo([]byte(strconv.Itoa(i)), front(r, "b"))
	}
	b.SetReadDeadline(time.Now().Add(patient))
	buffer := make([]byte, 2048)
	for i := range 50 {
		n, err := b.Read(buffer)
		must(t, err)
		if string(buffer[:n]) != strconv.Itoa(i) {
			t.Fatalf("got %q, the next was %d: jitter has changed the order", buffer[:n], i)
		}
	}
	if took := time.Since(start); took < 50*time.Millisecond || took > 2*time.Second {
		t.Errorf("took %v", took)
	}

	must(t, r.Set("a", "b", Rule{Rate: 100_000}))
	start = time.Now()
	for range 30 {
		a.WriteTo(buffer[:1000], front(r, "b"))
	}
	for range 30 {
		_, err := b.Read(buffer)
		must(t, err)
	}
	if took := time.Since(start); took < 285*time.Millisecond {
		t.Errorf("30,000 bytes took %v at 100,000 a second", took)
	}

	// What waits is bounded, and a cut takes it.
	must(t, r.Set("a", "b", Rule{Delay: time.Hour}))
	sent := 2 * maxFlight / 1400
	for i := range sent {
		a.WriteTo(buffer[:1400], front(r, "b"))
		if i%50 == 49 {
			time.Sleep(time.Millisecond)
		}
	}
	relayEventually(t, "the queue is full", func() bool { return r.Counters()[Pair("a", "b")].Full > 0 })
	d := r.direction("a", "b")
	d.mu.Lock()
	if d.flight.bytes > maxFlight {
		t.Errorf("%d bytes wait", d.flight.bytes)
	}
	d.mu.Unlock()
	must(t, r.Set("a", "b", Rule{Cut: true}))
	if got := receiveAll(b, 50*time.Millisecond); len(got) != 0 {
		t.Errorf("%d came through the cut", len(got))
	}
	if c := r.Counters()[Pair("a", "b")]; c.Cut < maxFlight/1400 {
		t.Errorf("%d were counted as cut", c.Cut)
	}
}

// named answers each connection with a name.
func named(t *testing.T, address, name string) {
	serve(t, address, func(c *net.TCPConn) {
		io.WriteString(c, name)
		io.Copy(io.Discard, c)
	})
}

func nameAt(t *testing.T, address string) string {
	c, err := net.DialTimeout("tcp4", address, patient)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(patient))
	b := make([]byte, 16)
	n, err := c.Read(b)
	if err != nil {
		return err.Error()
	}
	return string(b[:n])
}

func TestFrontOfForeignServer(t *testing.T) {
	r := newTestRelay(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	address, port := l.Addr().String(), l.Addr().(*net.TCPAddr).Port
	l.Close()
	serve(t, address, echo)
	ip, err := r.Front("nacos", "localhost", port)
	must(t, err)
	if ip != r.Address("nacos") {
		t.Errorf("the front is %s, its address %s", ip, r.Address("nacos"))
	}
	c := dialFront(t, net.JoinHostPort(ip, strconv.Itoa(port)))
	ask(t, c, "hello")
	must(t, r.Set(Host, "nacos", Rule{Delay: 30 * time.Millisecond}))
	if took := ask(t, c, "slow"); took < 30*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

func TestNameFront(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	named(t, r.at("a"), "a")
	named(t, r.at("b"), "b")
	ip, err := r.Front("registry.test", "", r.Port())
	must(t, err)
	name := net.JoinHostPort(ip, strconv.Itoa(r.Port()))
	if got := nameAt(t, name); !strings.Contains(got, "reset") {
		t.Errorf("a name without targets answered %q", got)
	}
	must(t, r.Point("registry.test", "a", "b"))
	var got []string
	for range 4 {
		got = append(got, nameAt(t, name))
	}
	if strings.Join(got, "") != "abab" && strings.Join(got, "") != "baba" {
		t.Errorf("connections went to %v, not in turn", got)
	}
	must(t, r.Point("registry.test", "b"))
	stays := dialFront(t, name)
	_, err = io.ReadFull(stays, make([]byte, 1))
	must(t, err)
	must(t, r.Point("registry.test", "a"))
	if got := nameAt(t, name); got != "a" {
		t.Errorf("a new connection went to %q", got)
	}
	silent(t, stays, 50*time.Millisecond)
	// Rules are those of the end behind the name.
	must(t, r.Set("b", Host, Rule{Cut: true}))
	r.drop(r.end("registry.test"))
	stays.SetReadDeadline(time.Now().Add(patient))
	if _, err := stays.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a dropped connection ended with %v", err)
	}
	must(t, r.Point("registry.test", "b"))
	silent(t, dialFront(t, name), 50*time.Millisecond)

	if r.Point("registry.test", "nobody") == nil || r.Point("a", "b") == nil || r.Point("nobody") == nil {
		t.Error("what makes no sense was taken")
	}
}

func TestEndsComeAndGo(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	reached := serve(t, r.at("a"), echo)
	c := dialFront(t, r.via("a"))
	ask(t, c, "hello")
	addresses := []string{r.Bind("a"), r.Address("a"), r.Bind("b"), r.Address("b")}
	gone := r.via("a")
	must(t, r.Set(Host, "a", Rule{Cut: true}))
	must(t, r.Remove("a"))
	c.SetReadDeadline(time.Now().Add(patient))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection to a removed end: %v", err)
	}
	if _, err := net.Dial("tcp4", gone); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling a removed end: %v", err)
	}
	if r.Address("a") != "" || reached() != 1 {
		t.Error("it is still there")
	}
	must(t, r.Add("a"))
	if slices.Contains(addresses, r.Bind("a")) || slices.Contains(addresses, r.Address("a")) {
		t.Errorf("an address was given again: %s, %s", r.Bind("a"), r.Address("a"))
	}
	serve(t, r.at("a"), echo)
	ask(t, dialFront(t, r.via("a")), "without the rule of the one before")

	for what, err := range map[string]error{
		"a name twice":     r.Add("a"),
		"the host's name":  r.Add(Host),
		"nobody":           r.Remove("nobody"),
		"a rule to nobody": r.Set("a", "nobody", Rule{}),
		"a rule of loss 2": r.Set("a", "b", Rule{Loss: 2}),
		"nobody down":      r.Down("nobody"),
		"nobody up":        r.Up("nobody"),
	} {
		if err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	if r.Bind("nobody") != "" {
		t.Error("nobody has an address")
	}
}

// Closing ends what is under way, in any state.
func TestCloseUnderLoad(t *testing.T) {
	r := newTestRelay(t, "a", "b")
	serve(t, r.at("a"), echo)
	a := gossip(t, r, "a")
	rules := []Rule{{}, {Cut: true}, {Delay: time.Hour}, {Rate: 10}, {Loss: 0.9}}
	for i := range 50 {
		must(t, r.Set(Host, "a", rules[i%len(rules)]))
		must(t, r.Set("a", "b", rules[i%len(rules)]))
		c := dialFront(t, r.via("a"))
		io.WriteString(c, "hello")
		a.WriteTo([]byte("hello"), front(r, "b"))
	}
	must(t, r.Close())
	if err := r.Add("c"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("adding to a closed relay: %v", err)
	}
	if _, err := net.Dial("tcp4", r.prefix+"111:"+strconv.Itoa(r.port)); err == nil {
		t.Error("a front is still open")
	}
}

// Two programs beside each other do not meet.
func TestTwoRelays(t *testing.T) {
	one, two := newTestRelay(t, "a"), newTestRelay(t, "a")
	serve(t, one.at("a"), func(c *net.TCPConn) { io.WriteString(c, "one") })
	serve(t, two.at("a"), func(c *net.TCPConn) { io.WriteString(c, "two") })
	if a, b := nameAt(t, one.via("a")), nameAt(t, two.via("a")); a != "one" || b != "two" {
		t.Errorf("got %q and %q", a, b)
	}
}

func BenchmarkStream(b *testing.B) {
	r, err := NewRelay(0)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	r.Add("a")
	l, err := net.Listen("tcp4", r.at("a"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	done := make(chan int64)
	go func() {
		c, _ := l.Accept()
		n, _ := io.Copy(io.Discard, struct{ io.Reader }{c})
		done <- n
	}()
	c, err := net.Dial("tcp4", r.via("a"))
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 64<<10)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := c.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	<-done
}

// BenchmarkRoundTrip is a request and its answer.
func BenchmarkRoundTrip(b *testing.B) {
	r, err := NewRelay(0)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	r.Add("a")
	l, err := net.Listen("tcp4", r.at("a"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, struct{ io.Reader }{c})
		}
	}()
	for _, to := range []string{"direct", "relay"} {
		b.Run(to, func(b *testing.B) {
			address := r.at("a")
			if to == "relay" {
				address = r.via("a")
			}
			c, err := net.Dial("tcp4", address)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			data := make([]byte, 200)
			for b.Loop() {
				c.Write(data)
				if _, err := io.ReadFull(c, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOwner is the lookup of one new connection of a process that has many.
func BenchmarkOwner(b *testing.B) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	var last net.Conn
	for range 2000 { // with the other ends 4,000 sockets and descriptors
		if last, err = net.Dial("tcp4", l.Addr().String()); err != nil {
			b.Fatal(err)
		}
		defer last.Close()
		c, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
	}
	for _, table := range []bool{false, true} {
		b.Run(fmt.Sprintf("inode/table=%v", table), func(b *testing.B) {
			for b.Loop() {
				q := []*question{{from: last.LocalAddr().(*net.TCPAddr), to: last.RemoteAddr().(*net.TCPAddr)}}
				if table {
					findInodes(q)
				} else {
					askKernel(q)
				}
			}
		})
	}
	for _, end := range []string{"a", Host} {
		b.Run(end, func(b *testing.B) {
			o := owners{processes: map[int]process{}}
			o.started(end, os.Getpid())
			for b.Loop() {
				c, err := net.Dial("tcp4", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				if got, err := o.of(c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)); err != nil || got != end {
					b.Fatal(got, err)
				}
				c.Close()
				if c, err := l.Accept(); err == nil { // before the backlog is full
					c.Close()
				}
			}
			o.scanners.Wait()
		})
	}
}
