package nacos

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// shown are the switches as JSON shows them, but for those that nobody has set.
func shown(t *testing.T, s Switches) map[string]string {
	t.Helper()
	members := func(s Switches) map[string]json.RawMessage {
		b, err := s.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	out := map[string]string{}
	usual := members(DefaultSwitches())
	for name, value := range members(s) {
		if string(usual[name]) != string(value) {
			out[name] = string(value)
		}
	}
	return out
}

func TestSwitches(t *testing.T) { // golden scenarios 18, 75
	const number = `For input string: "x"`
	const word = "the value of this switch is true or false, not "
	const params = `the value of this switch is like {"max":5000,"min":1000,"factor":0.75}, all three, and nothing else`
	bools := [][3]string{{"check", "healthCheckEnabled"}, {"autoChangeHealthCheckEnabled", "autoChangeHealthCheckEnabled"}, {"pushEnabled", "pushEnabled"},
		{"lightBeatEnabled", "lightBeatEnabled"}, {"defaultInstanceEphemeral", "defaultInstanceEphemeral"}, {"distro", "distroEnabled"},
		{"disableAddIP", "disableAddIP", "off"}, {"sendBeatOnly", "sendBeatOnly", "off"}, {"enableStandalone", "enableStandalone"}}
	type row struct{ entry, value, name, shows, fails string }
	rows := []row{
		{"healthCheckTimes", "5", "checkTimes", "5", ""},
		{"healthCheckTimes", "0", "", "", "healthCheckTimes must be from 1 to 100"},
		{"healthCheckTimes", "101", "", "", "healthCheckTimes must be from 1 to 100"},
		{"healthCheckTimes", "x", "", "", number},
		{"clientBeatInterval", "7000", "clientBeatInterval", "7000", ""},
		{"clientBeatInterval", " 7000 ", "clientBeatInterval", "7000", ""},
		{"clientBeatInterval", "x", "", "", number},
		{"clientBeatInterval", "", "", "", `For input string: ""`},
		{"clientBeatInterval", "99999999999999999999", "", "", `For input string: "99999999999999999999"`},
		{"clientBeatInterval", "0", "", "", "clientBeatInterval must be from 100 to 3600000 milliseconds"},
		{"clientBeatInterval", "-5", "", "", "clientBeatInterval must be from 100 to 3600000 milliseconds"},
		{"clientBeatInterval", "3600001", "", "", "clientBeatInterval must be from 100 to 3600000 milliseconds"},
		{"pushCacheMillis", "20000", "defaultPushCacheMillis", "20000", ""},
		{"pushCacheMillis", "9999", "", "", "min cache time for http or tcp is too small(<10000)"},
		{"pushCacheMillis", "x", "", "", number},
		{"defaultCacheMillis", "1000", "defaultCacheMillis", "1000", ""},
		{"defaultCacheMillis", "999", "", "", "min default cache time  is too small(<1000)"},
		{"serverStatusSynchronizationPeriodMillis", "1000", "serverStatusSynchronizationPeriodMillis", "1000", ""},
		{"serverStatusSynchronizationPeriodMillis", "999", "", "", "serverStatusSynchronizationPeriodMillis is too small(<1000)"},
		{"serviceStatusSynchronizationPeriodMillis", "6000", "serviceStatusSynchronizationPeriodMillis", "6000", ""},
		{"serviceStatusSynchronizationPeriodMillis", "4999", "", "", "serviceStatusSynchronizationPeriodMillis is too small(<5000)"},
		{"distroServerExpiredMillis", "1", "distroServerExpiredMillis", "1", ""},
		{"distroServerExpiredMillis", "0", "", "", "distroServerExpiredMillis must be positive"},
		{"distroThreshold", "0.5", "distroThreshold", "0.5", ""},
		{"distroThreshold", "1", "distroThreshold", "1.0", ""},
		{"distroThreshold", "0", "", "", "distroThreshold can not be zero or negative: 0"},
		{"distroThreshold", "NaN", "", "", `For input string: "NaN"`},
		{"distroThreshold", "Inf", "", "", `For input string: "Inf"`},
		{"distroThreshold", "x", "", "", number},
		{"distroThreshold", "0_1", "", "", `For input string: "0_1"`},
		{"masters", "10.0.0.1,10.0.0.2", "masters", `["10.0.0.1","10.0.0.2"]`, ""},
		{"overriddenServerStatus", "UP", "overriddenServerStatus", `"UP"`, ""},
		{"overriddenServerStatus", "DOWN", "overriddenServerStatus", `"DOWN"`, ""},
		{"overriddenServerStatus", "STARTING", "overriddenServerStatus", `"STARTING"`, ""},
		{"overriddenServerStatus", "PAUSED", "overriddenServerStatus", `"PAUSED"`, ""},
		{"overriddenServerStatus", "READ_ONLY", "overriddenServerStatus", `"READ_ONLY"`, ""},
		{"overriddenServerStatus", "WRITE_ONLY", "overriddenServerStatus", `"WRITE_ONLY"`, ""},
		{"overriddenServerStatus", "null", "overriddenServerStatus", `""`, ""},
		{"overriddenServerStatus", "down", "", "", "the value of overriddenServerStatus is UP, DOWN, STARTING, PAUSED, READ_ONLY, WRITE_ONLY or null, not down"},
		{"limitedUrlMap", "/a:418,/b/c:503", "limitedUrlMap", `{"/a":418,"/b/c":503}`, ""},
		{"limitedUrlMap", "/a:418,", "limitedUrlMap", `{"/a":418}`, ""},
		{"limitedUrlMap", ",", "limitedUrlMap", "", ""}, // the default
		{"limitedUrlMap", "", "", "", ""},
		{"limitedUrlMap", "/a", "", "", "invalid input for limited urls"},
		{"limitedUrlMap", ",/a:1", "", "", "invalid input for limited urls"},
		{"limitedUrlMap", ":418", "", "", "url can not be empty, url: "},
		{"limitedUrlMap", "/a:x", "", "", number},
		{"limitedUrlMap", "/a:0", "", "", "illegal normal status code: 0"},
		{"pushVersion", "java:1.0.0", "pushVersionOfJava", `"1.0.0"`, ""},
		{"pushVersion", "python:1.0.0", "pushVersionOfPython", `"1.0.0"`, ""},
		{"pushVersion", "c:1.0.0", "pushVersionOfC", `"1.0.0"`, ""},
		{"pushVersion", "go:1.0.0", "pushVersionOfGo", `"1.0.0"`, ""},
		{"pushVersion", "csharp:1.0.0", "pushVersionOfCsharp", `"1.0.0"`, ""},
		{"pushVersion", "rust:1.0.0", "", "", "unsupported client type: rust"},
		{"pushVersion", "", "", "", "unsupported client type: "},
		{"pushVersion", "java", "", "", `illegal version, must match: [0-9]+\.[0-9]+\.[0-9]+`},
		{"pushVersion", "java:1", "", "", `illegal version, must match: [0-9]+\.[0-9]+\.[0-9]+`},
		{"batch", "{}", "", "", "entry batch is not offered, set one switch after the other"},
		{"noSuchSwitch", "1", "", "", ""},
		{"", "1", "", "", ""},
		{"pushVersionOfJava", "1.0.0", "", "", ""}, // no entry
		{"healthCheckEnabled", "false", "", "", ""},
		{"masters", strings.Repeat("m", MaxSwitchValue+1), "", "", "the value of a switch is at most 16384 bytes long"},
	}
	for _, b := range bools {
		not := "false"
		if b[2] != "" {
			not = "true"
		}
		rows = append(rows, row{b[0], not, b[1], not, ""}, row{b[0], strings.ToUpper(not), b[1], not, ""},
			row{b[0], "yes", "", "", word + "yes"}, row{b[0], "", "", "", word})
	}
	for _, of := range []string{"httpHealthParams", "tcpHealthParams", "mysqlHealthParams"} {
		rows = append(rows,
			row{of, `{"max":6000,"min":600,"factor":1}`, of, `{"max":6000,"min":600,"factor":1.0}`, ""},
			row{of, `{"max":6000,"min":499,"factor":1}`, "", "", "min check time for http or tcp is too small(<500)"},
			row{of, `{"max":2999,"min":600,"factor":1}`, "", "", "max check time for http or tcp is too small(<3000)"},
			row{of, `{"max":3000,"min":3001,"factor":1}`, "", "", "max check time is below min check time"},
			row{of, `{"max":6000,"min":600,"factor":1.1}`, "", "", "malformed factor"},
			row{of, `{"max":6000,"min":600}`, "", "", params},
			row{of, `{"max":6000,"min":600,"factor":1,"more":1}`, "", "", params},
			row{of, `{"max":6000,"min":600,"factor":1}{`, "", "", params},
			row{of, `x`, "", "", params}, row{of, ``, "", "", params}, row{of, `null`, "", "", params})
	}
	seen := map[string]bool{}
	for _, r := range rows {
		name, kept, err := ParseSwitch(r.entry, r.value)
		if err != nil || r.fails != "" {
			if err == nil || err.Error() != r.fails || name != "" {
				t.Errorf("%s=%.50s: %q, error %v, want %s", r.entry, r.value, name, err, r.fails)
			}
			continue
		}
		if name != r.name {
			t.Errorf("%s=%.50s: kept as %q, want %q", r.entry, r.value, name, r.name)
		}
		if name == "" {
			continue
		}
		seen[name] = true
		s := DefaultSwitches()
		if err := s.Set(name, kept); err != nil {
			t.Errorf("%s=%s: what was parsed cannot be set: %v", r.entry, r.value, err)
		}
		want := map[string]string{}
		if r.shows != "" {
			want[r.name] = r.shows
		}
		if is := shown(t, s); !reflect.DeepEqual(is, want) {
			t.Errorf("%s=%s: shows %v, want %v", r.entry, r.value, is, want)
		}
	}
	for _, row := range switchRows {
		if !seen[row.name] {
			t.Errorf("%s is not tried", row.name)
		}
	}
}

// What another release has written does not change anything.
func TestSwitchesOfAnotherRelease(t *testing.T) {
	s := DefaultSwitches()
	for name, value := range map[string]string{"healthCheckEnabled": "sometimes", "checkTimes": "1e3", "clientBeatInterval": "PT5S", "brandNew": "1", "": "",
		"overriddenServerStatus": "DRAINING", "limitedUrlMap": "{}", "httpHealthParams": "[]"} {
		if s.Set(name, value) == nil {
			t.Errorf("%s=%s is taken", name, value)
		}
	}
	if is := shown(t, s); len(is) > 0 {
		t.Errorf("shows %v", is)
	}
}

func TestPushState(t *testing.T) {
	f := func(p PushState, detail, reset bool, want string) {
		t.Helper()
		if got := string(p.AppendJSON(nil, detail, reset)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f(PushState{2, 2, 3, 4}, false, false, `{"succeed":2,"total":2,"ratio":1.0,"reset":false}`)
	f(PushState{0, 0, -1, -1}, false, true, `{"succeed":0,"total":0,"ratio":0,"reset":true}`)
	f(PushState{1, 4, 3, 4}, true, false, `{"succeed":1,"total":4,"ratio":0.25,"detail":{"avgPushCost":3,"maxPushCost":4},"reset":false}`)
}
