package grpcresolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/starling-registry/starling/pkg/client"
)

// withoutBalancer is the environment of a child of this test that does not
// register it.
const withoutBalancer = "STARLING_TEST_WITHOUT_BALANCER"

func TestMain(m *testing.M) {
	if os.Getenv(withoutBalancer) == "" {
		RegisterBalancer()
	}
	os.Exit(m.Run())
}

// A source stands for a client: all watches see the list that was set last, as
// those of a client do.
type source struct {
	mu       sync.Mutex
	list     []client.Instance
	set      bool
	err      error // of Next, again and again, until there is a list
	changed  chan struct{}
	asked    int // watches that were begun
	from     client.Source
	watching int // watches that are not closed
	channels int // resolvers that are not
}

func newSource() *source { return &source{changed: make(chan struct{})} }

func (s *source) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *source) tell(list ...client.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.set, s.err = list, true, nil
	s.wakeLocked()
}

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.wakeLocked()
}

func (s *source) watch(context.Context, Target) (watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if errors.Is(s.err, client.ErrClosed) {
		return nil, s.err
	}
	s.watching++
	return &scripted{source: s}, nil
}

type scripted struct {
	source *source
	saw    chan struct{} // source.changed of what was seen last
}

func (w *scripted) Next(ctx context.Context) (client.Event, error) {
	for {
		w.source.mu.Lock()
		list, set, err, changed := w.source.list, w.source.set, w.source.err, w.source.changed
		from := w.source.from
		w.source.mu.Unlock()
		switch {
		case err != nil:
			return client.Event{}, err
		case set && w.saw != changed:
			w.saw = changed
			return client.Event{Snapshot: client.Snapshot{Instances: list, Source: from}}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return client.Event{}, ctx.Err()
		}
	}
}

func (w *scripted) Close() {
	w.source.mu.Lock()
	defer w.source.mu.Unlock()
	w.source.watching--
}

// at is a good instance.
func at(ip string, weight float64) client.Instance {
	return client.Instance{IP: ip, Port: 80, Weight: weight, Healthy: true, Enabled: true, Cluster: client.DefaultCluster, Metadata: map[string]string{}}
}

// A channel writes down what a resolver says.
type channel struct {
	resolver.ClientConn // nil
	mu                  sync.Mutex
	heard               []string
	states              []resolver.State
}

func (c *channel) UpdateState(s resolver.State) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, e := range s.Endpoints {
		list = append(list, fmt.Sprintf("%s*%v", e.Addresses[0].Addr, weightOf(e)))
	}
	c.heard = append(c.heard, "["+strings.Join(list, " ")+"]")
	c.states = append(c.states, s)
	return nil
}

func (c *channel) ReportError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = append(c.heard, err.Error())
}

func (c *channel) ParseServiceConfig(json string) *serviceconfig.ParseResult {
	if json == "bad" {
		return &serviceconfig.ParseResult{Err: errors.New("no JSON")}
	}
	return &serviceconfig.ParseResult{}
}

// expect compares with what was heard since the last time.
func (c *channel) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := cmp.Diff(want, c.heard); d != "" {
		t.Error(d)
	}
	c.heard = nil
}

func target(s string) resolver.Target {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return resolver.Target{URL: *u}
}

func resolve(t *testing.T, s *source, where string, opts ...Option) (*channel, resolver.Resolver) {
	t.Helper()
	c := new(channel)
	r, err := newBuilder(s.watch, opts).Build(target(where), c, resolver.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.channels++
	// A bubble ends only when all its goroutines have: what is left is a deadlock.
	t.Cleanup(func() {
		r.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.channels--; s.watching > s.channels {
			t.Errorf("%d watches of %d channels are left", s.watching, s.channels)
		}
	})
	return c, r
}

const none = "service DEFAULT_GROUP@@order: no instance to pick: %d known, none of them enabled, healthy and of a weight above 0"

func TestListBecomesEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		c, _ := resolve(t, s, "starling:///order")
		c.expect(t)
		sick, off, idle, odd, twin, six := at("10.0.0.5", 1), at("10.0.0.6", 1), at("10.0.0.7", 0), at("10.0.0.8", math.NaN()), at("10.0.0.1", 9), at("fd00::1", 0.5)
		sick.Healthy, off.Enabled, twin.Cluster = false, false, "other"
		s.tell(at("10.0.0.1", 1), at("10.0.0.2", 3), sick, off, idle, odd, twin, six, at("10.0.0.9", math.Inf(1)))
		c.expect(t, "[10.0.0.1:80*1 10.0.0.2:80*3 [fd00::1]:80*0.5 10.0.0.9:80*10000]")

		// Balancers that know no endpoints.
		if s := c.states[0]; len(s.Addresses) != 4 || s.Addresses[1].Addr != "10.0.0.2:80" || s.ServiceConfig == nil {
			t.Errorf("%+v", s)
		}
		// An address with attributes would be another connection when they change.
		for _, e := range c.states[0].Endpoints {
			if a := e.Addresses[0]; !a.Equal(resolver.Address{Addr: a.Addr}) {
				t.Errorf("%+v", a)
			}
		}

		// What does not matter to a channel is not told.
		more := at("10.0.0.1", 1)
		more.Metadata["version"] = "2"
		s.tell(more, at("10.0.0.2", 3))
		c.expect(t, "[10.0.0.1:80*1 10.0.0.2:80*3]")
		s.tell(at("10.0.0.1", 1), at("10.0.0.2", 3), sick)
		c.expect(t)
		s.tell(at("10.0.0.1", 1), at("10.0.0.2", 2))
		c.expect(t, "[10.0.0.1:80*1 10.0.0.2:80*2]")
	})
}

// The port of instances that also speak HTTP is in their metadata (L-12).
func TestPortOfMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := newSource()
		c, _ := resolve(t, s, "starling:///order?port_meta=gRPC_port", WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		list := []client.Instance{at("10.0.0.1", 1), at("10.0.0.2", 1), at("10.0.0.3", 1), at("10.0.0.4", 1)}
		list[1].Metadata["gRPC_port"] = "9090"
		list[2].Metadata["gRPC_port"] = "http"
		list[3].Metadata["gRPC_port"] = "0"
		s.tell(list...)
		c.expect(t, "[10.0.0.1:80*1 10.0.0.2:9090*1]")
		s.tell(list[1:]...) // the complaint is not repeated with every list
		c.expect(t, "[10.0.0.2:9090*1]")
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), `10.0.0.4:80: metadata gRPC_port=`) {
			t.Error(log.String())
		}
	})
}

// An empty list is a mistake or a restart more often than the end of a service,
// and the connections may still be good.
func TestEmptyListHasGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		c, _ := resolve(t, s, "starling:///order", WithGrace(5*time.Second))
		s.tell(at("10.0.0.1", 1))
		c.expect(t, "[10.0.0.1:80*1]")

		s.tell()
		time.Sleep(4 * time.Second)
		s.tell(at("10.0.0.1", 1)) // back in time: the channel has not noticed
		time.Sleep(time.Minute)
		c.expect(t)

		s.tell()
		time.Sleep(3 * time.Second)
		sick := at("10.0.0.1", 1)
		sick.Healthy = false
		s.tell(sick) // another empty list does not extend it
		time.Sleep(1999 * time.Millisecond)
		c.expect(t)
		time.Sleep(time.Millisecond)
		c.expect(t, "[]", fmt.Sprintf(none, 1))
		s.tell() // still none: it is told why
		c.expect(t, "[]", fmt.Sprintf(none, 0))
		s.tell(at("10.0.0.1", 1))
		c.expect(t, "[10.0.0.1:80*1]")
	})
}

func TestGraceOfNothingAndForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		at0, _ := resolve(t, s, "starling:///order", WithGrace(0))
		ever, _ := resolve(t, s, "starling:///order", WithGrace(-1))
		s.tell(at("10.0.0.1", 1))
		at0.expect(t, "[10.0.0.1:80*1]")
		ever.expect(t, "[10.0.0.1:80*1]")
		s.tell()
		at0.expect(t, "[]", fmt.Sprintf(none, 0))
		time.Sleep(24 * time.Hour)
		ever.expect(t)
	})
}

// There is nothing to keep for a service that has never had an instance.
func TestEmptyAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		c, _ := resolve(t, s, "starling:///order")
		s.tell()
		c.expect(t, fmt.Sprintf(none, 0))
		time.Sleep(time.Hour)
		c.expect(t)
		s.tell(at("10.0.0.1", 1))
		c.expect(t, "[10.0.0.1:80*1]")
	})
}

// Calls without a deadline do not hang because no server is there.
func TestNoListInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		c, _ := resolve(t, s, "starling:///order")
		time.Sleep(patience - time.Millisecond)
		c.expect(t)
		time.Sleep(time.Hour)
		c.expect(t, "service DEFAULT_GROUP@@order: no list of its instances within 10s: not connected to any server")
		s.tell(at("10.0.0.1", 1))
		c.expect(t, "[10.0.0.1:80*1]")
	})
}

// A refusal is reported; the client tries again by itself, and what there is
// remains.
func TestErrorsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused = "service DEFAULT_GROUP@@order: unauthorized"
		s := newSource()
		c, _ := resolve(t, s, "starling:///order")
		s.fail(client.ErrUnauthorized)
		time.Sleep(patience + 500*time.Millisecond) // the source says it again and again
		c.expect(t, slices.Repeat([]string{refused}, 11)...)
		s.tell(at("10.0.0.1", 1))
		time.Sleep(complainEvery)
		c.expect(t, "[10.0.0.1:80*1]")
		s.fail(client.ErrUnauthorized)
		c.expect(t, refused)
		s.tell(at("10.0.0.1", 1), at("10.0.0.2", 1))
		time.Sleep(complainEvery)
		c.expect(t, "[10.0.0.1:80*1 10.0.0.2:80*1]")
	})
}

// A closed client says nothing more: the channel goes on with what it has, and
// others are refused.
func TestClosedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		c, _ := resolve(t, s, "starling:///order")
		s.tell(at("10.0.0.1", 1))
		c.expect(t, "[10.0.0.1:80*1]")
		s.fail(fmt.Errorf("watch: %w", client.ErrClosed))
		time.Sleep(time.Hour)
		c.expect(t, "service DEFAULT_GROUP@@order: watch: client closed")
		if _, err := newBuilder(s.watch, nil).Build(target("starling:///order"), c, resolver.BuildOptions{}); !errors.Is(err, client.ErrClosed) {
			t.Error(err)
		}
	})
}

// A list from the disk is used while no server has spoken, unless it is empty:
// that was another day.
func TestOldList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, from := range []client.Source{client.FromDisk, client.FromStale} {
			s := newSource()
			s.from = from
			c, _ := resolve(t, s, "starling:///order")
			s.tell()
			c.expect(t)
			time.Sleep(patience)
			c.expect(t, fmt.Sprintf(none, 0)) // but it is why there is nothing
			s.tell(at("10.0.0.1", 1))
			c.expect(t, "[10.0.0.1:80*1]")
			s.tell()
			time.Sleep(time.Hour)
			c.expect(t)
		}
	})
}

// grpc calls it for every connection that fails.
func TestResolveNowAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.tell(at("10.0.0.1", 1))
		c, r := resolve(t, s, "starling:///order")
		c.expect(t, "[10.0.0.1:80*1]")
		for range 1000 {
			r.ResolveNow(resolver.ResolveNowOptions{})
			time.Sleep(time.Millisecond)
		}
		if s.asked != 1 {
			t.Errorf("asked %d times", s.asked)
		}
		c.expect(t)
	})
}

// Close at any moment ends everything, and nothing is said after it.
func TestCloseAtAnyMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		b := newBuilder(s.watch, nil)
		for d := range 24 {
			c := new(channel)
			r, err := b.Build(target("starling:///order"), c, resolver.BuildOptions{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(d) * 500 * time.Millisecond)
			switch d % 3 {
			case 0:
				s.fail(client.ErrUnauthorized)
			case 1:
				s.tell(at("10.0.0.1", 1))
			case 2:
				s.tell()
			}
			if d%2 == 0 {
				time.Sleep(time.Duration(d) * time.Second)
			}
			r.Close()
			c.heard = nil
			s.tell(at("10.0.0.2", 1))
			time.Sleep(time.Minute)
			c.expect(t)
		}
		if s.watching != 0 {
			t.Errorf("%d watches are left", s.watching)
		}
	})
}

func TestBuildRefuses(t *testing.T) {
	b := newBuilder(newSource().watch, nil)
	if _, err := b.Build(target("starling:///order?claster=a"), new(channel), resolver.BuildOptions{}); err == nil || !strings.Contains(err.Error(), "claster") {
		t.Error(err)
	}
	b = newBuilder(newSource().watch, []Option{WithServiceConfig("bad")})
	if _, err := b.Build(target("starling:///order"), new(channel), resolver.BuildOptions{}); err == nil || !strings.Contains(err.Error(), "service config") {
		t.Error(err)
	}
	// Who has switched service configs off does not get one.
	r, err := b.Build(target("starling:///order"), new(channel), resolver.BuildOptions{DisableServiceConfig: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

func TestPickAt(t *testing.T) {
	p := &picker{upTo: []float64{1, 4, 4.5}}
	for part, want := range map[float64]int{0: 0, 0.22: 0, 0.23: 1, 0.88: 1, 0.889: 2, math.Nextafter(1, 0): 2} {
		if got := p.at(part); got != want {
			t.Errorf("%v: %d, want %d", part, got, want)
		}
	}
	tiny := &picker{upTo: []float64{math.SmallestNonzeroFloat64}}
	if got := tiny.at(math.Nextafter(1, 0)); got != 0 {
		t.Error(got)
	}
}
