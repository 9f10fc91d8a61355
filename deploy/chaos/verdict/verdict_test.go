package verdict

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Three providers, two of them on node a, and two observers.
func quiet() *Timeline {
	return &Timeline{
		Providers: []Provider{
			{Name: "p1", SDK: "go", Node: "a", UpMs: -5000},
			{Name: "p2", SDK: "java3", Node: "a", UpMs: -5000},
			{Name: "p3", SDK: "python", Node: "b", UpMs: -5000},
		},
		Observers: []Observer{{Name: "s1", SDK: "go", Node: "a"}, {Name: "s2", SDK: "java2", Node: "b"}},
		EndMs:     60_000,
	}
}

// see adds views: the observer, and at each time what it saw, with spaces.
func (t *Timeline) see(observer string, at Millis, seen string) *Timeline {
	v := View{Observer: observer, AtMs: at, Seen: strings.Fields(seen)}
	if seen == "blind" {
		v.Seen, v.Blind = nil, true
	}
	t.Views = append(t.Views, v)
	return t
}

func (t *Timeline) died(name string, at Millis) *Timeline {
	for i := range t.Providers {
		if t.Providers[i].Name == name {
			t.Providers[i].DiedMs = &at
		}
	}
	return t
}

func within(limit Millis) *Expectation {
	return &Expectation{GoneWithin: func(*Provider) Millis { return limit }}
}

func TestJudge(t *testing.T) {
	onA := func(p *Provider) bool { return p.Node == "a" }
	cutOff := func(mustBy Millis) *Expectation {
		return &Expectation{Absences: []Absence{{
			Why: "cut off", Providers: onA, Observers: func(o *Observer) bool { return o.Node == "b" },
			From: 20_000, To: 42_000, MustBy: mustBy,
		}}}
	}
	tests := []struct {
		name     string
		timeline *Timeline
		expect   *Expectation
		gaps     []string // provider@observer from-to
		excused  []string
		late     []string
		faults   []string // parts of them
	}{
		{
			name: "nothing happens",
			timeline: quiet().see("s1", -100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3"),
		},
		{
			name: "views before the first disturbance do not count, the last of them does",
			timeline: quiet().see("s1", -3000, "p1").see("s1", -100, "p1 p2 p3").
				see("s2", -2000, "p3").see("s2", -100, "p2 p3").see("s2", 10, "p1 p2 p3"),
			gaps: []string{"p1@s2 0-10"},
		},
		{
			name: "a gap of a few milliseconds",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 7_000, "p1 p2").see("s1", 7_003, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3"),
			gaps: []string{"p3@s1 7000-7003"},
		},
		{
			name: "a gap over several lists is one, two are two",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 1_000, "p1").see("s1", 2_000, "p1 p2").see("s1", 3_000, "p1 p2 p3").
				see("s1", 4_000, "p1 p3").see("s1", 5_000, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3"),
			gaps: []string{"p2@s1 1000-2000", "p2@s1 4000-5000", "p3@s1 1000-3000"},
		},
		{
			name: "a gap that never ends",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 9_000, "p2 p3").
				see("s2", -100, "p1 p2 p3"),
			gaps:   []string{"p1@s1 9000-60000"},
			faults: []string{"at the end s1 lacks p1 and has nothing"},
		},
		{
			name: "an empty list is a gap of all",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 100, "").see("s1", 200, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3"),
			gaps: []string{"p1@s1 100-200", "p2@s1 100-200", "p3@s1 100-200"},
		},
		{
			name: "a reader without an answer knows nothing, then not even a gap",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 100, "blind").see("s1", 200, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 100, "p1 p2").see("s2", 300, "blind"),
			gaps: []string{"p3@s2 100-300"},
		},
		{
			name: "a reader that comes back with a partial list",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 100, "blind").see("s1", 5_000, "p1").see("s1", 5_100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3"),
			gaps: []string{"p2@s1 5000-5100", "p3@s1 5000-5100"},
		},
		{
			name: "a dead one may go, and goes in time",
			timeline: quiet().died("p1", 500).see("s1", -100, "p1 p2 p3").see("s1", 8_000, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 12_500, "p2 p3"),
			expect: within(12_000),
		},
		{
			name: "a dead one that is seen a moment too long by one",
			timeline: quiet().died("p1", 500).see("s1", -100, "p1 p2 p3").see("s1", 8_000, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 12_501, "p2 p3"),
			expect: within(12_000),
			late:   []string{"p1 12001 s2"},
		},
		{
			name: "a dead one that is seen for ever",
			timeline: quiet().died("p1", 0).see("s1", -100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 100, "p2 p3"),
			expect: within(12_000),
			late:   []string{"p1 60000 s1 never"},
			faults: []string{"at the end s1 lacks nothing and has p1"},
		},
		{
			name: "an observer that cannot be told has longer, but not for ever",
			timeline: quiet().died("p1", 0).died("p2", 0).see("s1", -100, "p1 p2 p3").see("s1", 11_000, "p3").
				see("s2", -100, "p1 p2 p3").see("s2", 40_000, "p1 p3").see("s2", 45_001, "p3"),
			expect: &Expectation{GoneWithin: func(*Provider) Millis { return 12_000 },
				Deaf: func(o *Observer) bool { return o.Node == "b" }, DeafFor: 45_000},
			late: []string{"p1 45001 s2"},
		},
		{
			name: "a dead one that comes back, though in time",
			timeline: quiet().died("p1", 0).see("s1", -100, "p1 p2 p3").see("s1", 1_000, "p2 p3").see("s1", 2_000, "p1 p2 p3").see("s1", 3_000, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 100, "p2 p3"),
			expect: within(12_000),
			late:   []string{"p1 3000 s1 returned"},
		},
		{
			name: "a node that wakes up and shows a dead one again",
			timeline: quiet().died("p1", 1_000).see("s1", -100, "p1 p2 p3").see("s1", 900, "blind").see("s1", 30_000, "p1 p2 p3").see("s1", 30_050, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 20_000, "p2 p3"),
			expect: within(25_000),
			late:   []string{"p1 29050 s1"},
		},
		{
			name: "missing before it died is a gap",
			timeline: quiet().died("p1", 10_000).see("s1", -100, "p1 p2 p3").see("s1", 4_000, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 11_000, "p2 p3"),
			expect: within(12_000),
			gaps:   []string{"p1@s1 4000-10000"},
		},
		{
			name: "one that registers meanwhile is due once it was seen, and at the end",
			timeline: func() *Timeline {
				t := quiet().see("s1", -100, "p1 p2 p3").see("s1", 6_000, "p1 p2 p3 p4").see("s1", 7_000, "p1 p2 p3").see("s1", 8_000, "p1 p2 p3 p4").
					see("s2", -100, "p1 p2 p3")
				t.Providers = append(t.Providers, Provider{Name: "p4", SDK: "go", Node: "a", UpMs: 5_000})
				return t
			}(),
			gaps:   []string{"p4@s1 7000-8000"},
			faults: []string{"at the end s2 lacks p4 and has nothing"},
		},
		{
			name: "an excused absence, and one that begins too soon",
			timeline: quiet().see("s1", -100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 19_999, "p2 p3").see("s2", 24_000, "p3").see("s2", 41_000, "p1 p2 p3"),
			expect:  cutOff(35_000),
			gaps:    []string{"p1@s2 19999-41000"},
			excused: []string{"p2@s2 24000-41000"},
		},
		{
			name: "an absence is for those it names",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 24_000, "p3").see("s1", 25_000, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 24_000, "").see("s2", 25_000, "p1 p2 p3"),
			expect:  cutOff(0),
			gaps:    []string{"p1@s1 24000-25000", "p2@s1 24000-25000", "p3@s2 24000-25000"},
			excused: []string{"p1@s2 24000-25000", "p2@s2 24000-25000"},
		},
		{
			name: "an absence that ends too late",
			timeline: quiet().see("s1", -100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 24_000, "p2 p3").see("s2", 42_001, "p1 p2 p3"),
			expect: cutOff(0),
			gaps:   []string{"p1@s2 24000-42001"},
		},
		{
			name: "those that must be missing and are not",
			timeline: quiet().see("s1", -100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 24_000, "p2 p3").see("s2", 40_000, "p1 p2 p3"),
			expect:  cutOff(35_000),
			excused: []string{"p1@s2 24000-40000"},
			faults:  []string{"s2 still saw p2 at 35.0 s"},
		},
		{
			name: "equal in time",
			timeline: quiet().died("p1", 5_000).see("s1", -100, "p1 p2 p3").see("s1", 5_100, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 11_900, "p2 p3"),
			expect: &Expectation{GoneWithin: func(*Provider) Millis { return 7_000 }, EqualFrom: 10_000, EqualWithin: 2_000},
		},
		{
			name: "equal too late",
			timeline: quiet().died("p1", 5_000).see("s1", -100, "p1 p2 p3").see("s1", 5_100, "p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 12_100, "p2 p3"),
			expect: &Expectation{GoneWithin: func(*Provider) Millis { return 9_000 }, EqualFrom: 10_000, EqualWithin: 2_000},
			faults: []string{"views were equal only after 2.1 s, not 2.0 s: s2 lacked nothing and had p1"},
		},
		{
			name: "strangers and doubles",
			timeline: quiet().see("s1", -100, "p1 p2 p3").see("s1", 100, "p1 p1 p2 p3").see("s1", 200, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3").see("s2", 100, "p1 p2 p3 10.0.0.9:80").see("s2", 200, "p1 p2 p3"),
			faults: []string{"s1 saw something twice at 0.1 s: p1", "s2 saw 10.0.0.9:80 at 0.1 s, which nobody registered"},
		},
		{
			name:     "an observer that saw nothing at all",
			timeline: quiet().see("s1", -100, "p1 p2 p3"),
			faults:   []string{"s2 saw nothing before the scenario began"},
		},
		{
			name: "views that arrive out of order are put into order",
			timeline: quiet().see("s1", 2_000, "p1 p2 p3").see("s1", 1_000, "p1 p2").see("s1", -100, "p1 p2 p3").
				see("s2", -100, "p1 p2 p3"),
			gaps: []string{"p3@s1 1000-2000"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			expect := test.expect
			if expect == nil {
				expect = &Expectation{}
			}
			v := Judge(test.timeline, expect)
			check(t, "gaps", gapNames(v.Gaps), test.gaps)
			check(t, "excused gaps", gapNames(v.Excused), test.excused)
			var late []string
			for _, d := range v.Gone {
				if d.Late() {
					s := d.Provider + " " + number(d.AfterMs) + " " + d.Observer
					if d.Never {
						s += " never"
					}
					if d.Returned {
						s += " returned"
					}
					late = append(late, s)
				}
			}
			check(t, "late departures", late, test.late)
			if len(v.Faults) != len(test.faults) {
				t.Errorf("faults %q, want %q", v.Faults, test.faults)
			} else {
				for i, part := range test.faults {
					if !strings.Contains(v.Faults[i], part) {
						t.Errorf("fault %q, want %q", v.Faults[i], part)
					}
				}
			}
			if want := len(test.gaps)+len(test.late)+len(test.faults) == 0; v.Passed() != want {
				t.Errorf("passed is %v, want %v", v.Passed(), want)
			}
		})
	}
}

func number(m Millis) string { return strconv.FormatInt(int64(m), 10) }

func gapNames(gaps []Gap) []string {
	var names []string
	for _, g := range gaps {
		names = append(names, g.Provider+"@"+g.Observer+" "+number(g.FromMs)+"-"+number(g.ToMs))
	}
	return names
}

func check(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s %q, want %q", what, got, want)
	}
}
