package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// Stamps order the lists of one connection, and say nothing about those of
// another (C-4, G-10, S000-11).
func TestOrderOfLists(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		r := f.only()
		r.pushInfo(infoOf(order, 5_000_000, []host{inst("1.1.1.2")}))
		wantEvent(t, w, "[1.1.1.2] +[1.1.1.2] -[1.1.1.1] ~[]")
		r.pushInfo(infoOf(order, 4_999_999, []host{inst("1.1.1.3")}))
		wantNone(t, w, time.Second)
		if got := instances(t, c, "order"); got != "1.1.1.2" {
			t.Errorf("an older list was taken: %s", got)
		}
		r.pushInfo(infoOf(order, 5_000_000, []host{inst("1.1.1.4")})) // as old: content decides
		wantEvent(t, w, "[1.1.1.4] +[1.1.1.4] -[1.1.1.2] ~[]")

		f.drop() // and the server's clock is far behind
		ev := next(t, w, 10*time.Second)
		if told(ev) != "[1.1.1.1] +[1.1.1.1] -[1.1.1.4] ~[]" || ev.First {
			t.Error(told(ev))
		}
		at := time.Now()
		time.Sleep(time.Second)
		f.set(order, inst("1.1.1.1"))
		settle()
		if snap, err := c.Snapshot(t.Context(), "order"); err != nil || snap.AsOf.Sub(at) != time.Second { // C-6
			t.Errorf("an equal list does not make it younger: %v, %v", snap.AsOf.Sub(at), err)
		}
	})
}

// KeepLast keeps a list that is worth it (C-2, C-5, S000-27); without it nothing
// is kept (G-9).
func TestKeepLast(t *testing.T) {
	bad := map[string]string{
		"empty":     `[]`,
		"unhealthy": `[{"ip":"2.2.2.2","port":1,"healthy":false}]`,
		"no weight": `[{"ip":"2.2.2.2","port":1,"weight":0}]`,
	}
	for what, hosts := range bad {
		for _, keep := range []bool{false, true} {
			for _, all := range []bool{false, true} {
				run(t, func(t *testing.T, s *scene) {
					f := s.server("10.0.0.1")
					f.set(order, inst("1.1.1.1"))
					c := s.client(Config{KeepLast: keep})
					w := watch(t, c, "order")
					next(t, w, time.Second)
					f.only().pushInfo(`{"name":"order","groupName":"DEFAULT_GROUP","lastRefTime":9000000,"allIps":` + fmt.Sprint(all) + `,"hosts":` + hosts + `}`)
					settle()
					kept := instances(t, c, "order") == "1.1.1.1"
					if want := keep && !all; kept != want {
						t.Errorf("%s, KeepLast %v, allIps %v: kept %v", what, keep, all, kept)
					} else if kept {
						wantNone(t, w, time.Second)
					} else {
						next(t, w, time.Second)
					}
				})
			}
		}
	}
}

// Messages that make no sense change nothing and end nothing; what the client does
// not know it says (N-16, C-1, C-2, S000-26).
//
// Row S001-5.
func TestOddPushes(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		r := f.only()
		for n, p := range []struct{ typ, body, answer string }{
			{nacos.TypeNotifySubscriberRequest, `{"requestId":"0","serviceInfo":{"name":"","hosts":[]}}`, `"success":true`},
			{nacos.TypeNotifySubscriberRequest, `{"requestId":"1","serviceInfo":{"name":"unknown","hosts":[]}}`, `"success":true`},
			{nacos.TypeNotifySubscriberRequest, `{"requestId":"2","serviceInfo":{"name":"order","lastRefTime":9000000}}`, `"success":true`},
			{nacos.TypeNotifySubscriberRequest, `{"requestId":"3","serviceInfo":{"name":"order","hosts":null}}`, `"success":true`},
			{nacos.TypeNotifySubscriberRequest, `{"requestId":"4"}`, `"success":false`},
			{nacos.TypeNotifySubscriberRequest, `{"requestId":"5","serviceInfo":{"name":"order","hosts":{}}}`, `"success":false`},
			{nacos.TypeNotifySubscriberRequest, `garbage`, `"success":false`},
			{nacos.TypeClientDetectionRequest, `{"requestId":"7"}`, `"success":true`},
			{"NeverHeardOfRequest", `{"requestId":"8"}`, `"success":false`},
			{nacos.TypeFuzzyWatchSyncRequest, `{"requestId":"9","groupKeyPattern":"public>>g>>*"}`, `"success":true`},
			{nacos.TypeFuzzyWatchChangeNotifyRequest, `{"requestId":"10","serviceKey":"x"}`, `"success":true`},
		} {
			r.push(p.typ, []byte(p.body))
			settle()
			f.mu.Lock()
			if len(r.acks) != n+1 || !strings.Contains(r.acks[n].body, p.answer) || p.body[0] == '{' && !strings.Contains(r.acks[n].body, fmt.Sprintf(`"requestId":"%d"`, n)) {
				t.Errorf("%s: %+v", p.body, r.acks[min(n, len(r.acks)-1):])
			} else if unknown := p.typ == "NeverHeardOfRequest"; unknown != (r.acks[n].typ == nacos.TypeErrorResponse) {
				t.Errorf("%s: answered by %s", p.typ, r.acks[n].typ)
			}
			f.mu.Unlock()
		}
		wantNone(t, w, time.Second)
		// C-1: both spellings of the name.
		r.pushInfo(`{"name":"DEFAULT_GROUP@@order","lastRefTime":9000000,"hosts":[{"ip":"1.1.1.2","port":80}]}`)
		wantEvent(t, w, "[1.1.1.2] +[1.1.1.2] -[1.1.1.1] ~[]")
		if got := instances(t, c, "order"); got != "1.1.1.2" || s.dials != 1 {
			t.Error(got, s.dials)
		}
	})
}

// The same function takes what a poll finds (S000-30), 60 s after the last word
// (P-3, P-5, P-6, S000-13, S000-16).
//
// Rows S000-17, S002-4.
func TestPoll(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		start := time.Now()
		f.setPush(false)
		f.set(order, inst("1.1.1.1"))
		if got := told(next(t, w, 73*time.Second)); got != "[1.1.1.1] +[1.1.1.1] -[] ~[]" {
			t.Error(got)
		}
		if took := time.Since(start); took < 48*time.Second {
			t.Errorf("polled after %v", took)
		}
		f.setPush(true)
		time.Sleep(30 * time.Second)
		f.set(order, inst("1.1.1.2")) // pushes hold polls off
		n := f.count(nacos.TypeServiceQueryRequest, "")
		time.Sleep(47 * time.Second)
		if got := f.count(nacos.TypeServiceQueryRequest, ""); got != n {
			t.Error("polled though a push came")
		}
		time.Sleep(26 * time.Second)
		if got := f.count(nacos.TypeServiceQueryRequest, ""); got != n+1 {
			t.Errorf("%d polls within 73 s of a push", got-n)
		}
	})
}

// Failed polls back off, 2ⁿ s up to 60 s (P-7, P-8, S000-18); an empty list is no
// failure, and without a connection nobody polls (P-15).
//
// Row S000-13.
func TestPollBacksOff(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		f.setScript(func(_ *remote, typ string, _ []byte) *nacos.Payload {
			if typ == nacos.TypeServiceQueryRequest {
				return refuse(nacos.TypeErrorResponse, 400)
			}
			return nil
		})
		time.Sleep(8 * time.Minute)
		polls := f.requests(nacos.TypeServiceQueryRequest, "")
		want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}
		for n := range want {
			if n+1 >= len(polls) {
				t.Fatalf("only %d polls", len(polls))
			}
			gap := polls[n+1].at.Sub(polls[n].at)
			if d := want[n] * time.Second; gap < d*8/10 || gap > d*12/10+keepAtLeast {
				t.Errorf("poll %d after %v, want about %v", n+2, gap, d)
			}
		}
		f.setScript(nil)
		time.Sleep(2 * time.Minute)
		n := f.count(nacos.TypeServiceQueryRequest, "")
		time.Sleep(10 * time.Minute)
		if got := f.count(nacos.TypeServiceQueryRequest, "") - n; got < 8 || got > 13 {
			t.Errorf("%d polls of an empty service in 10 minutes", got)
		}
		f.kill()
		n = f.count(nacos.TypeServiceQueryRequest, "")
		time.Sleep(10 * time.Minute)
		if got := f.count(nacos.TypeServiceQueryRequest, "") - n; got != 0 {
			t.Errorf("%d polls without a connection", got)
		}
	})
	run(t, func(t *testing.T, s *scene) { // P-1
		f := s.server("10.0.0.1")
		c := s.client(Config{PollInterval: -1})
		next(t, watch(t, c, "order"), time.Second)
		time.Sleep(time.Hour)
		if n := f.count(nacos.TypeServiceQueryRequest, ""); n != 0 {
			t.Errorf("%d polls", n)
		}
	})
}

// Polls of all services together are bounded (P-12), and so are subscriptions in
// flight.
func TestManyServices(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{PollInterval: 10 * time.Second})
		const services = 500
		for n := range services {
			if _, err := c.WatchFunc(t.Context(), fmt.Sprint("s", n), func(Event) {}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if n := f.count(nacos.TypeSubscribeServiceRequest, ""); n != services {
			t.Errorf("%d subscriptions", n)
		}
		bySecond := map[int64]int{}
		for _, a := range f.requests(nacos.TypeServiceQueryRequest, "") {
			bySecond[a.at.Unix()]++
		}
		if len(bySecond) < 40 {
			t.Errorf("polls in %d seconds only", len(bySecond))
		}
		for _, n := range bySecond {
			if n > 2*maxPollsPerSecond {
				t.Errorf("%d polls in one second", n)
			}
		}
	})
}

// A list is told as a whole, by push, subscription and query alike, and replaces
// the one before (S000-9): nothing of that is kept.
func TestFullLists(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		for n := range 5 {
			f.set(order, inst(fmt.Sprint("1.1.1.", n)), inst(fmt.Sprint("1.1.1.", n+1), func(h *host) { h.Metadata = nacos.Metadata{"n": fmt.Sprint(n)} }))
			next(t, w, time.Second)
			pushed, err1 := c.Instances(t.Context(), "order")
			asked, err2 := c.Instances(t.Context(), "order", NoSubscribe())
			if err1 != nil || err2 != nil || len(pushed) != 2 || !sameInstances(pushed, asked) {
				t.Errorf("pushed %+v, %v; asked %+v, %v", pushed, err1, asked, err2)
			}
		}
		if n := f.count(nacos.TypeSubscribeServiceRequest, ""); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
	})
}

// What is not subscribed is not polled: the first poll comes after the
// subscription and the interval (P-2, P-3, S000-10), not beside it.
func TestNoPollBeforeSubscription(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.setScript(func(_ *remote, typ string, _ []byte) *nacos.Payload {
			if typ == nacos.TypeSubscribeServiceRequest {
				return refuse("SubscribeServiceResponse", 403)
			}
			return nil
		})
		c := s.client(Config{})
		w := watch(t, c, "order")
		time.Sleep(10 * time.Minute)
		if n := f.count(nacos.TypeServiceQueryRequest, ""); n != 0 {
			t.Errorf("%d polls of what a server refuses", n)
		}
		f.setScript(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := w.Next(ctx)
		for errors.Is(err, ErrUnauthorized) {
			_, err = w.Next(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		subscribed := time.Now()
		time.Sleep(73 * time.Second)
		polls := f.requests(nacos.TypeServiceQueryRequest, "")
		if len(polls) != 1 || polls[0].at.Sub(subscribed) < 48*time.Second {
			t.Errorf("%d polls after the subscription: %+v", len(polls), polls)
		}
	})
}

// A server that accepts a subscription and tells no list is asked for it (P-9,
// S000-15), and what it says is kept.
func TestSubscriptionWithoutAList(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		f.setScript(func(r *remote, typ string, body []byte) *nacos.Payload {
			if typ == nacos.TypeSubscribeServiceRequest {
				r.request(&nacos.Payload{Type: typ, Body: body})
				return okay(nacos.TypeSubscribeServiceResponse, `,"serviceInfo":{"name":"order","groupName":"DEFAULT_GROUP"}`)
			}
			return nil
		})
		c := s.client(Config{})
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		if got := instances(t, c, "order"); got != "1.1.1.1" {
			t.Errorf("read %q", got)
		}
		if n := f.count(nacos.TypeServiceQueryRequest, ""); n != 1 {
			t.Errorf("%d queries", n)
		}
	})
}

// The answer to an unsubscription has a list too, which nobody wants: it neither
// changes what is known nor outdates what comes later (S000-21).
func TestUnsubscriptionTellsNothing(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		late := infoOf(order, 9_000_000, []host{inst("6.6.6.6")})
		f.setScript(func(r *remote, typ string, body []byte) *nacos.Payload {
			if typ == nacos.TypeSubscribeServiceRequest && strings.Contains(string(body), `"subscribe":false`) {
				r.pushInfo(late) // on its way already
				r.request(&nacos.Payload{Type: typ, Body: body})
				return okay(nacos.TypeSubscribeServiceResponse, `,"serviceInfo":`+late)
			}
			return nil
		})
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		w.Close()
		settle()
		if r := f.only(); r.subscribed(order) || len(r.acked()) != 1 {
			t.Errorf("subscribed %v, acks %+v", r.subscribed(order), r.acked())
		}
		if got := instances(t, c, "order", StaleOK(0)); got != "1.1.1.1" {
			t.Errorf("known after the end: %q", got)
		}
		f.set(order, inst("1.1.1.2"))
		settle()
		if got := instances(t, c, "order"); got != "1.1.1.2" {
			t.Errorf("subscribed again: %q", got)
		}
	})
}
