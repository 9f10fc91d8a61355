package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

func (f *fake) fuzzySync(r *remote, typ, pattern string, keys ...string) {
	contexts := []fuzzyChange{}
	for _, k := range keys {
		c := fuzzyChange{k, "ADD_SERVICE"}
		if k[0] == '-' {
			c = fuzzyChange{k[1:], "DELETE_SERVICE"}
		}
		contexts = append(contexts, c)
	}
	b, _ := json.Marshal(map[string]any{"requestId": "1", "syncType": typ, "groupKeyPattern": pattern, "contexts": contexts})
	r.push(nacos.TypeFuzzyWatchSyncRequest, b)
}

func (f *fake) fuzzyChange(r *remote, key, typ string) {
	b, _ := json.Marshal(map[string]any{"requestId": "2", "serviceKey": key, "changedType": typ})
	r.push(nacos.TypeFuzzyWatchChangeNotifyRequest, b)
}

func toldServices(ev ServiceEvent) string {
	return fmt.Sprintf("first=%v %v +%v -%v", ev.First, ev.Services, ev.Added, ev.Removed)
}

func TestWatchServices(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		ready(t, c)
		w, err := c.WatchServices(t.Context(), "or*", Group("g"))
		if err != nil {
			t.Fatal(err)
		}
		const pattern = "public>>g>>or*"
		want := func(want string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if ev, err := w.Next(ctx); err != nil || toldServices(ev) != want {
				t.Errorf("%s, %v; want %s", toldServices(ev), err, want)
			}
		}
		none := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if ev, err := w.Next(ctx); err == nil {
				t.Error(toldServices(ev))
			}
		}
		r := f.only()
		f.fuzzySync(r, nacos.SyncInit, pattern, "public@@g@@order", "public@@g@@orange", "public@@g@@unasked", "nonsense")
		none() // not all yet
		f.fuzzySync(r, nacos.SyncFinish, pattern)
		want("first=true [g@@orange g@@order] +[g@@orange g@@order] -[]")
		f.fuzzyChange(r, "public@@g@@orbit", "ADD_SERVICE")
		want("first=false [g@@orange g@@orbit g@@order] +[g@@orbit] -[]")
		f.fuzzyChange(r, "public@@g@@orbit", "ADD_SERVICE")
		f.fuzzyChange(r, "public@@h@@orbit", "ADD_SERVICE")
		none()
		f.fuzzyChange(r, "public@@g@@order", "DELETE_SERVICE")
		want("first=false [g@@orange g@@orbit] +[] -[g@@order]")

		// A second watcher of the pattern needs no request.
		w2, err := c.WatchServices(t.Context(), "or*", Group("g"))
		if err != nil {
			t.Fatal(err)
		}
		if ev := <-w2.C(); len(ev.Added) != 2 || !ev.First {
			t.Error(toldServices(ev))
		}
		if n := f.count(nacos.TypeFuzzyWatchRequest, ""); n != 1 {
			t.Errorf("%d requests", n)
		}

		// Notes are compared now and then, and at a new connection.
		time.Sleep(compareEvery + sweepEvery)
		f.drop()
		time.Sleep(5 * time.Second)
		for n, a := range f.requests(nacos.TypeFuzzyWatchRequest, "")[1:] {
			var m fuzzyRequest
			json.Unmarshal([]byte(a.body), &m)
			if m.Initializing || len(m.Received) != 2 || n > 1 {
				t.Errorf("%d: %+v", n, m)
			}
		}
		r = f.only()
		if _, _, fuzzy, _ := r.has(); !fuzzy[pattern] {
			t.Error("not watched on the new connection")
		}
		f.fuzzySync(r, nacos.SyncDiff, pattern, "-public@@g@@orange", "public@@g@@order")
		want("first=false [g@@orbit g@@order] +[g@@order] -[g@@orange]")
		for _, a := range r.acked() {
			if a.typ != "NamingFuzzyWatchChangeNotifyResponse" {
				t.Error(a.typ)
			}
		}

		w.Close()
		w2.Close()
		if _, _, fuzzy, _ := r.has(); fuzzy[pattern] || len(c.fuzzy.all) != 0 {
			t.Error("watched though nobody watches")
		}
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if w, err = c.WatchServices(t.Context(), "or*", Group("g")); err != nil {
			t.Fatal(err)
		}
		settle()
		f.fuzzySync(r, nacos.SyncFinish, pattern)
		want("first=true [] +[] -[]")
		for _, p := range []string{"", "a>>b"} {
			if _, err := c.WatchServices(t.Context(), p); !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		}
	})
}

// A server that cannot, or does not want to.
func TestWatchServicesIsRefused(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		c := s.client(Config{Addrs: []string{"10.0.0.1"}})
		w, err := c.WatchServices(t.Context(), "*")
		if err != nil {
			t.Fatal(err)
		}
		f := s.server("10.0.0.1", func(f *fake) { f.abilities = nil })
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrUnsupported) {
			t.Error(err)
		}
		if n := f.count(nacos.TypeFuzzyWatchRequest, ""); n != 0 {
			t.Error("asked all the same")
		}
		f.kill()
		f = s.server("10.0.0.1")
		f.setScript(func(_ *remote, typ string, _ []byte) *nacos.Payload {
			if typ == nacos.TypeFuzzyWatchRequest {
				return refuse(nacos.TypeFuzzyWatchResponse, nacos.CodeMatchOverLimit)
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		f.fuzzySync(f.only(), nacos.SyncFinish, "public>>DEFAULT_GROUP>>*")
		if ev, err := w.Next(t.Context()); err != nil || !ev.First {
			t.Error(toldServices(ev), err)
		}
	})
}
