package nacos

import "testing"

func TestParseClientID(t *testing.T) {
	for id, want := range map[string]struct {
		ip            string
		port          int
		ephemeral, ok bool
	}{
		BeatClientID("10.0.0.1", 80):   {"10.0.0.1", 80, true, true},
		BeatClientID("fd00::7", 0):     {"fd00::7", 0, true, true},
		"10.0.0.1:65535#false":         {"10.0.0.1", 65535, false, true},
		"host:80#true":                 {"host", 80, true, true},
		"":                             {},
		"#true":                        {},
		"10.0.0.1#true":                {},
		"10.0.0.1:80":                  {},
		"10.0.0.1:80#":                 {},
		"10.0.0.1:80#TRUE":             {},
		"10.0.0.1:80#true#false":       {},
		"10.0.0.1:65536#true":          {},
		"10.0.0.1:-1#true":             {},
		"10.0.0.1:#true":               {},
		"1724059023123_10.0.0.9_40001": {},
	} {
		ip, port, ephemeral, ok := ParseClientID(id)
		if ip != want.ip || port != want.port || ephemeral != want.ephemeral || ok != want.ok {
			t.Errorf("%q: %q %d %v %v", id, ip, port, ephemeral, ok)
		}
	}
}
