package distro

import (
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

func TestLease(t *testing.T) {
	times := DefaultOptions().Leases
	for _, c := range []struct {
		name               string
		silent             bool
		orphans, survivors int
		want               time.Duration
	}{
		{"refused", false, 0, 2, 10 * time.Second},
		{"silent", true, 0, 2, 22500 * time.Millisecond},
		{"crowd", false, 40_000, 2, 20 * time.Second},
		{"crowd, one survivor", false, 40_000, 1, 30 * time.Second},
		{"cap", true, 1_000_000, 2, time.Minute},
		{"no survivors known", false, 2_000, 0, 11 * time.Second},
	} {
		if got := times.lease(c.silent, c.orphans, c.survivors); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name       string
		silent     bool
		redo, want time.Duration
		restart    bool
	}{
		{"nobody is slow", false, 0, 0, false},
		{"Python", false, 35 * time.Second, 24 * time.Second, false},
		{"Python, restart of this node", false, 35 * time.Second, 15 * time.Second, true},
		{"nobody is slow, restart", false, 0, 0, true},
		{"Python, silent", true, 35 * time.Second, 12500 * time.Millisecond, false},
		{"shorter than the lease", true, 15 * time.Second, 0, false},
		{"cap", false, time.Hour, 49 * time.Second, false},
	} {
		if got := times.extra(c.silent, c.restart, c.redo); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := times.deadline(registry.StampAt(1_000_000), false, 10*time.Second); got != 1_011_000 {
		t.Errorf("refused: deadline %d", got)
	}
	if got := times.deadline(registry.StampAt(1_000_000), true, 22*time.Second); got != 1_024_500 {
		t.Errorf("silent: deadline %d", got)
	}
}

func TestJudge(t *testing.T) {
	times := DefaultOptions().Leases
	const at = 1_000_000
	ms := func(d time.Duration) int64 { return at + d.Milliseconds() }
	probe := surroundings{probe: true}
	for _, c := range []struct {
		name string
		o    orphan
		s    surroundings
		want verdict
	}{
		{"before its deadline", orphan{now: ms(9 * time.Second), deadline: ms(10 * time.Second)}, probe, wait},
		{"refused, over", orphan{now: ms(10 * time.Second), deadline: ms(10 * time.Second)}, probe, expire},
		{"refused, over but for slow clients", orphan{now: ms(10 * time.Second), deadline: ms(10 * time.Second), extra: 25_000}, probe, wane},
		{"refused, over for them too", orphan{now: ms(35 * time.Second), deadline: ms(10 * time.Second), extra: 25_000}, probe, expire},
		{"silent, over", orphan{now: ms(25 * time.Second), deadline: ms(24 * time.Second), silent: true}, probe, dial},
		{"silent, over, no probe", orphan{now: ms(25 * time.Second), deadline: ms(24 * time.Second), silent: true}, surroundings{}, expire},
		{"refused, over, another is silent", orphan{now: ms(11 * time.Second), deadline: ms(10 * time.Second)}, surroundings{probe: true, someoneSilent: true}, dial},
		{"refused, over, a silent lease runs (F09)", orphan{now: ms(11 * time.Second), deadline: ms(10 * time.Second)}, surroundings{probe: true, someoneSilent: true, silentLeaseRuns: true}, wait},
		{"… but not longer than the cap", orphan{now: ms(60 * time.Second), deadline: ms(10 * time.Second)}, surroundings{probe: true, silentLeaseRuns: true}, expire},
		{"… which starts after the pauses", orphan{now: ms(60 * time.Second), deadline: ms(10 * time.Second), paused: 1000}, surroundings{probe: true, silentLeaseRuns: true}, wait},
		{"dialled for as long as Nacos grants", orphan{now: ms(179 * time.Second), deadline: ms(24 * time.Second), silent: true}, probe, dial},
		{"and no longer", orphan{now: ms(180 * time.Second), deadline: ms(24 * time.Second), silent: true}, probe, expire},
		{"self-preservation", orphan{now: ms(50 * time.Second), deadline: ms(24 * time.Second), silent: true}, surroundings{probe: true, preserving: true}, pause},
		{"self-preservation is bounded", orphan{now: ms(400 * time.Second), deadline: ms(24 * time.Second), paused: 180_000, silent: true}, surroundings{probe: true, preserving: true}, expire},
		{"pauses move the deadline", orphan{now: ms(25 * time.Second), deadline: ms(24 * time.Second), paused: 5_000, silent: true}, probe, wait},
	} {
		c.o.orphanedAt = at
		if got := times.judge(c.o, c.s); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestMoving(t *testing.T) {
	times := DefaultOptions().Leases
	for _, c := range []struct {
		name  string
		after time.Duration
		s     surroundings
		want  verdict
	}{
		{"at once", 0, surroundings{probe: true}, wait},
		{"10 s", 10 * time.Second, surroundings{probe: true}, expire},
		{"a silent lease runs (F10)", 30 * time.Second, surroundings{probe: true, silentLeaseRuns: true, someoneSilent: true}, wait},
		{"60 s", time.Minute, surroundings{probe: true, silentLeaseRuns: true}, expire},
		{"someone is silent", time.Minute, surroundings{probe: true, silentLeaseRuns: true, someoneSilent: true}, dial},
		{"180 s", 3 * time.Minute, surroundings{probe: true, someoneSilent: true}, expire},
	} {
		if got := times.moving(1000+c.after.Milliseconds(), 1000, c.s); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestTooQuiet(t *testing.T) {
	members := func(states ...MemberState) (map[string]bool, map[string]Member) {
		stable, ms := map[string]bool{}, map[string]Member{}
		for n, s := range states {
			id := testLife(n+1, 1).Node
			stable[id], ms[id] = true, Member{ID: id, State: s}
		}
		return stable, ms
	}
	for _, c := range []struct {
		states []MemberState
		want   bool
	}{
		{nil, false},
		{[]MemberState{Alive}, false},
		{[]MemberState{Alive, Silent}, true},
		{[]MemberState{Alive, Refused}, false},
		{[]MemberState{Alive, Alive, Silent}, false},
		{[]MemberState{Alive, Silent, Silent}, true},
		{[]MemberState{Alive, Silent, Refused}, false},
		{[]MemberState{Alive, Alive, Silent, Silent}, true},
		{[]MemberState{Alive, Alive, Alive, Silent, Silent}, false},
		{[]MemberState{Alive, Alive, Silent, Silent, Silent}, true},
	} {
		if got := tooQuiet(members(c.states...)); got != c.want {
			t.Errorf("%v: %v", c.states, got)
		}
	}
}

func TestStableSet(t *testing.T) {
	now := time.Unix(1000, 0)
	p := preservation{aliveSince: map[string]time.Time{}, stable: map[string]bool{}}
	see := func(after time.Duration, states ...MemberState) {
		ms := map[string]Member{}
		for n, s := range states {
			ms[testLife(n+1, 1).Node] = Member{State: s}
		}
		now = now.Add(after)
		p.observe(now, ms, time.Minute)
	}
	see(0, Alive, Alive, Alive)
	see(59*time.Second, Alive, Silent, Silent)
	if p.active() || len(p.stable) != 0 {
		t.Fatal("nobody has been there for a minute")
	}
	see(time.Second, Alive, Alive, Alive)
	see(time.Minute, Alive, Alive, Alive)
	see(0, Alive, Silent, Silent)
	if !p.active() || len(p.stable) != 3 {
		t.Fatalf("two of three are silent: %v, %v", p.active(), p.stable)
	}
	p.overruled = true
	see(time.Second, Alive, Silent, Silent)
	if p.active() {
		t.Fatal("the operator has said otherwise")
	}
	see(time.Second, Alive, Left, Silent)
	if len(p.stable) != 2 {
		t.Fatalf("a leaver drops out: %v", p.stable)
	}
	see(time.Second, Alive, Left, Alive)
	see(time.Second, Alive, Left, Silent)
	if !p.active() {
		t.Fatal("the operator's word holds for one time only")
	}
}

func TestRendezvous(t *testing.T) {
	nodes := []string{testLife(1, 1).Node, testLife(2, 1).Node, testLife(3, 1).Node}
	owned := map[string]int{}
	for n := range 3000 {
		key := "10.0.0.1:" + time.Duration(n).String()
		was := rendezvous(key, nodes)
		owned[was]++
		if is := rendezvous(key, []string{nodes[2], nodes[0]}); was != nodes[1] && is != was {
			t.Fatalf("%s moved from %s to %s, and %s went", key, was, is, nodes[1])
		}
	}
	for _, n := range nodes {
		if owned[n] < 850 || owned[n] > 1150 {
			t.Errorf("%s owns %d of 3000", n, owned[n])
		}
	}
	// Part of the wire: it must not change.
	if got := weight("10.0.0.1:8080", nodes[0]); got != 0xd952c0cca916afd6 {
		t.Errorf("weight is %#x", got)
	}
	if got := rendezvous("x", nil); got != "" {
		t.Errorf("owner among none: %q", got)
	}
}
