package link

import (
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
func at(t testing.TB, r *Router, end string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		// The thread is never unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		done <- func() error {
			if space := r.Namespace(end); space != "" {
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
	if err := <-done; err != nil {
		t.Fatalf("at %s: %v", end, err)
	}
}

func listen(t testing.TB, r *Router, end string) (l net.Listener) {
	t.Helper()
	at(t, r, end, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(r.Bind(end), "0"))
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t testing.TB, r *Router, end, network, address string) (c net.Conn) {
	t.Helper()
	at(t, r, end, func() (err error) {
		c, err = net.DialTimeout(network, address, 20*time.Second)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// BenchmarkTCP copies over one connection.
func BenchmarkTCP(b *testing.B) {
	r := newRouter(b, "a", "b")
	l := listen(b, r, "b")
	c := dial(b, r, "a", "tcp", l.Addr().String())
	server, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	done := make(chan int64)
	go func() {
		// A plain Read, for the sake of comparing.
		n, _ := io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{server})
		done <- n
	}()
	before := r.Counters()
	start := time.Now()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	<-done
	took, after := time.Since(start).Seconds(), r.Counters()
	there, back := Pair("a", "b"), Pair("b", "a")
	b.ReportMetric(float64(after[there].Passed+after[back].Passed-before[there].Passed-before[back].Passed)/took, "packets/s")
	b.ReportMetric(float64(after[there].Bytes-before[there].Bytes)*8/took/1e9, "Gbit/s")
}
