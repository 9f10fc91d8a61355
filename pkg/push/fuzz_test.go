package push

import (
	"strings"
	"testing"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// FuzzCompare: a client that does what a comparison tells it knows exactly
// the services that match.
func FuzzCompare(f *testing.F) {
	f.Add("a,b,c", "public@@g@@a,public@@g@@x", "*", true)
	f.Add("", "", "a*", true)
	f.Add("a,a,,b", ",,x", "*b", false)
	f.Fuzz(func(t *testing.T, present, known, pattern string, initializing bool) {
		p := nacos.Pattern{Namespace: "public", Group: "g", Service: pattern}
		var keys []registry.ServiceKey
		want := map[string]bool{}
		for name := range strings.SplitSeq(present, ",") {
			k := registry.ServiceKey{Namespace: "public", Group: "g", Name: name}
			if p.Match(k) && want[nacos.FuzzyKey(k)] {
				continue // there is each service once
			}
			keys = append(keys, k)
			if p.Match(k) {
				want[nacos.FuzzyKey(k)] = true
			}
		}
		knows := map[string]bool{}
		for k := range strings.SplitSeq(known, ",") {
			if len(k) <= maxKey {
				knows[k] = true
			}
		}
		if len(want) > 500 || len(knows) > maxGone {
			return // then it takes more than one
		}
		syncs, over := compare("text", p, keys, strings.Split(known, ","), initializing, 500)
		if over || initializing && len(syncs) == 0 {
			t.Fatalf("over %v, %d messages", over, len(syncs))
		}
		for i, s := range syncs {
			if len(s.Changes) > syncBatch || s.Type != nacos.SyncFinish && (s.Current != i+1 || s.Total != len(syncs)) {
				t.Fatalf("message %d: %+v", i, s)
			}
			for _, c := range s.Changes {
				if knows[c.Key] != c.Gone {
					t.Fatalf("told in vain: %+v", c)
				}
				if c.Gone {
					delete(knows, c.Key)
				} else {
					knows[c.Key] = true
				}
			}
		}
		if len(knows) != len(want) {
			t.Fatalf("knows %v, want %v", knows, want)
		}
		for k := range want {
			if !knows[k] {
				t.Fatalf("does not know %q", k)
			}
		}
	})
}
