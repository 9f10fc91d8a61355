package main

import (
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	l := newLedger()
	l.wrote("acked", "1", acknowledged, "")
	l.wrote("refused", "1", refused, "")
	l.wrote("unknown", "1", unknown, "timeout")
	l.wrote("gone", "1", acknowledged, "")
	l.wrote("gone", absent, acknowledged, "")
	l.wrote("perhaps gone", "1", acknowledged, "")
	l.wrote("perhaps gone", absent, unknown, "timeout")
	l.wrote("kept", "1", acknowledged, "")
	l.wrote("kept", absent, refused, "")
	l.wrote("changed", "1", acknowledged, "")
	l.wrote("changed", "2", unknown, "timeout")
	l.wrote("changed", "3", acknowledged, "")

	right := func() map[string]string {
		return map[string]string{"acked": "1", "perhaps gone": "1", "kept": "1", "changed": "3"}
	}
	if err := l.judge("n", right()); err != nil {
		t.Error(err)
	}
	f := func(key, value string, ok bool) {
		t.Helper()
		has := right()
		if has[key] = value; value == absent {
			delete(has, key)
		}
		if err := l.judge("n", has); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), key) {
			t.Errorf("%s = %q: %v", key, value, err)
		}
	}
	f("acked", absent, false)
	f("acked", "2", false)
	f("refused", "1", false)
	f("unknown", "1", true)
	f("unknown", "2", false)
	f("gone", "1", false)
	f("perhaps gone", absent, true)
	f("kept", absent, false)
	f("changed", "2", true) // it may have come later
	f("changed", "1", false)
	f("stranger", "1", false)
}

func TestOutage(t *testing.T) {
	l := newLedger()
	begin := time.Now()
	for _, at := range []time.Duration{0, 10, 30, 930, 940} {
		l.acks = append(l.acks, begin.Add(at*time.Millisecond))
	}
	if got := l.outage(); got != 900*time.Millisecond {
		t.Error(got)
	}
}
