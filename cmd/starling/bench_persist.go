package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// persistEach is how many instances a connection registers in turn, and
// persistSharing how many a service has.
const (
	persistEach    = 100
	persistSharing = 20
)

// A persistLoad writes persistent instances: instance n of connection w is the
// same each time it comes round, with other metadata.
type persistLoad struct {
	each, services int
}

func (p persistLoad) service(w, n int) string {
	return persistService((w*p.each + n%p.each) % p.services)
}

func persistService(i int) string { return "persist-" + strconv.Itoa(i) }

func (p persistLoad) ip(w, n int) string { return hostAddress(w*p.each + n%p.each) }

func (p persistLoad) body(buf []byte, typ string, w, n int) []byte {
	buf = append(appendRef(buf, p.service(w, n)), `,"type":"`+typ+`","instance":`...)
	buf = append(appendInstance(buf, p.ip(w, n), 8080, n+1, false), `,"module":"naming"}`...)
	return buf
}

func (p persistLoad) form(w, n int) url.Values {
	return url.Values{"serviceName": {p.service(w, n)}, "groupName": {benchGroup}, "ip": {p.ip(w, n)}, "port": {"8080"},
		"ephemeral": {"false"}, "metadata": {fmt.Sprintf(`{"seq":"%0*d","zone":"a"}`, benchDigits, n+1)}}
}

// benchPersist: unlike all else, what is registered here does not go with its
// connection, and is removed afterwards.
func benchPersist(ctx context.Context, r *benchRun) (err error) {
	p := persistLoad{each: r.instances, services: r.services}
	if p.services == 0 {
		p.services = max(1, r.connections*p.each/persistSharing)
	}
	web := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: r.concurrency}}
	defer web.CloseIdleConnections()
	ending := context.WithoutCancel(ctx) // what is removed in the end is removed also if the run is stopped
	r.say(fmt.Sprintf("setting up %d services", p.services))
	services := func(ctx context.Context, method, path string, more url.Values) error {
		return each(ctx, p.services, r.concurrency, func(i int) (err error) {
			form := url.Values{"serviceName": {persistService(i)}, "groupName": {benchGroup}}
			maps.Copy(form, more)
			// Another node may have written what this one judges by, and this
			// one not have heard of it yet.
			for range 20 {
				if err = overHTTP(ctx, web, method, "http://"+r.at(i)+path+"?"+form.Encode()); err == nil || strings.Contains(err.Error(), "already exists") {
					return nil // of an earlier run
				}
				if !sleep(ctx, 100*time.Millisecond) {
					break
				}
			}
			return err
		})
	}
	if err := services(ctx, http.MethodPost, "/nacos/v1/ns/service", nil); err != nil {
		return err
	}
	if !r.keep {
		defer func() {
			if e := services(ending, http.MethodDelete, "/nacos/v1/ns/service", nil); e != nil {
				err = errors.Join(err, fmt.Errorf("services of this run are left in group %s: %w", benchGroup, e))
			}
		}()
	}
	if !r.checks {
		// Nobody answers at these addresses, and looking again and again would
		// be half of the load.
		if err := services(ctx, http.MethodPut, "/nacos/v1/ns/cluster", url.Values{"clusterName": {"DEFAULT"}, "checkPort": {"80"},
			"useInstancePort4Check": {"true"}, "healthChecker": {`{"type":"NONE"}`}}); err != nil {
			return err
		}
	}
	var write func(typ string) func(ctx context.Context, w, n int, buf []byte) ([]byte, error)
	if r.http {
		write = func(typ string) func(context.Context, int, int, []byte) ([]byte, error) {
			method := http.MethodPost
			if typ == nacos.OpDeregister {
				method = http.MethodDelete
			}
			return func(ctx context.Context, w, n int, buf []byte) ([]byte, error) {
				return buf, overHTTP(ctx, web, method, "http://"+r.at(w)+"/nacos/v1/ns/instance?"+p.form(w, n).Encode())
			}
		}
	} else {
		conns, err := r.dialAll(ctx, r.at, nil)
		if err != nil {
			return err
		}
		write = func(typ string) func(context.Context, int, int, []byte) ([]byte, error) {
			return func(ctx context.Context, w, n int, buf []byte) ([]byte, error) {
				buf = p.body(buf, typ, w, n)
				_, err := conns[w%len(conns)].Request(ctx, nacos.TypePersistentInstanceRequest, buf)
				return buf, err
			}
		}
	}
	atLeast := 0
	if r.keep {
		atLeast = p.each
	}
	registered := make([]int, r.concurrency)
	register := write(nacos.OpRegister)
	err = r.work(ctx, atLeast, func(ctx context.Context, w, n int, buf []byte) ([]byte, error) {
		registered[w] = max(registered[w], min(n+1, p.each))
		return register(ctx, w, n, buf)
	})
	if r.keep {
		return err
	}
	r.say("removing what was registered")
	deregister := write(nacos.OpDeregister)
	return errors.Join(err, each(ending, r.concurrency, r.concurrency, func(w int) (err error) {
		var buf []byte
		for n := range registered[w] {
			if buf, err = deregister(ending, w, n, buf[:0]); err != nil {
				return fmt.Errorf("instances of this run are left in group %s: %w", benchGroup, err)
			}
		}
		return nil
	}))
}

func overHTTP(ctx context.Context, c *http.Client, method, url string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return err
}
