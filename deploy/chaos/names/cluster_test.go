package names

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

// asked are the times at which a name's addresses were asked for.
func asked(s *Server, name string) (at []time.Time) {
	for _, q := range s.Queries() {
		if q.Name == name && q.Type == "A" {
			at = append(at, q.At)
		}
	}
	return at
}

// Nodes find each other by a name, and whoever comes behind it later: it is
// looked up again every 10 s ± 20 %, also when nobody is missing.
func TestNodesFollowAName(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	s := newSpace(t)
	const (
		lookedUp = 12 * time.Second // at the latest
		joined   = 3 * time.Second  // then
	)
	// Each has a name of its own, to tell who asked.
	set(t, s.dns, "a.test", s.address(0))
	a := s.start("--join", "a.test", "--expect", "1")
	set(t, s.dns, "b.test", a.ip, s.address(0))
	b := s.start("--join", "b.test")
	took := s.eventually(joined, func() error { return a.sees(2) })
	t.Logf("a node that starts behind the name is a member after %v", took)

	// The next one knows nobody: only the name of the others leads to it.
	c := s.start("--join", "c.test")
	set(t, s.dns, "a.test", a.ip, b.ip, c.ip)
	took = s.eventually(lookedUp+joined, func() error { return c.sees(3) })
	t.Logf("a node that only the changed records lead to is a member after %v", took)

	// Nobody is missing now. A name server that fails takes nothing away, and
	// what changed meanwhile is found when it is back.
	mark := time.Now()
	s.eventually(3*lookedUp, func() error { return afterMark(s.dns, "a.test", mark, 3) }) // the first may be because of c
	at := asked(s.dns, "a.test")
	period := at[len(at)-1].Sub(at[len(at)-2])
	t.Logf("with nobody missing the name is looked up again after %v", period)
	if period < 7*time.Second || period > lookedUp+time.Second {
		t.Errorf("that is not 10 s ± 20 %%")
	}
	for _, mode := range []Mode{ServFail, Silent} {
		s.dns.Fail(mode)
		mark = time.Now()
		s.eventually(lookedUp+6*time.Second, func() error { return afterMark(s.dns, "a.test", mark, 1) })
		for _, n := range []*node{a, b, c} {
			if err := n.sees(3); err != nil {
				t.Errorf("%v: %v", mode, err)
			}
			if err := n.ready(); err != nil {
				t.Errorf("%v: %v", mode, err)
			}
		}
	}
	d := s.start("--join", "d.test")
	set(t, s.dns, "a.test", a.ip, d.ip)
	s.dns.Fail(Working)
	took = s.eventually(lookedUp+6*time.Second+joined, func() error { return d.sees(4) })
	t.Logf("once names work again the next one is a member after %v", took)

	// The records do not take anybody away; only nodes that go do.
	if err := b.sees(4); err != nil {
		t.Errorf("b and c are not behind the name any more: %v", err)
	}
	b.Signal(syscall.SIGTERM)
	s.eventually(within, func() error { return a.sees(3) })

	kinds := map[string]bool{}
	for _, q := range s.dns.Queries() {
		kinds[q.Type] = true
	}
	if kinds["ANY"] || !kinds["A"] || !kinds["AAAA"] {
		t.Errorf("asked for %v", kinds)
	}
}

// afterMark is an error until a name was asked for so many times since.
func afterMark(s *Server, name string, mark time.Time, times int) error {
	at := asked(s, name)
	i := slices.IndexFunc(at, mark.Before)
	if i < 0 || len(at)-i < times {
		return errNotYet
	}
	return nil
}
