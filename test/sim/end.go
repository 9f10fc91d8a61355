package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// busyTime is how long the end of the quiet time is that nothing may be sent
// in but heads.
const busyTime = 30 * time.Second

// get asks a node over HTTP, from beside it.
func (o *observer) get(path string) ([]byte, error) {
	web := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return o.host.Dial(ctx, addr) }}}
	r, err := http.NewRequestWithContext(o.c.ctx, http.MethodGet, fmt.Sprintf("http://%s:%d%s", o.node.addr(), port, path), nil)
	if err != nil {
		return nil, err
	}
	resp, err := web.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s of %s: %s", path, o.node.name, resp.Status)
	}
	return b, err
}

// counters are the sums over all labels of what a node counts.
func (o *observer) counters() (map[string]float64, error) {
	b, err := o.get("/metrics")
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(series, "{")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] += v
		}
	}
	return all, nil
}

// transfers are what only differences cause.
var transfers = []string{"starling_distro_sent_frames_total", "starling_distro_pulls_total", "starling_distro_repairs_total", "starling_distro_applied_records_total"}

// work is how many transfers each node has counted.
func (c *Cluster) work() map[int]float64 {
	all := map[int]float64{}
	for _, o := range c.observers {
		if !o.node.isUp() {
			continue
		}
		counted, err := o.counters()
		if err != nil {
			c.check.fail("diverge", "at the end %s does not answer: %v", o.node.name, err)
			continue
		}
		for _, name := range transfers {
			all[o.node.id] += counted[name]
		}
		if n := counted["starling_distro_digest_mismatches_total"]; n > 0 {
			c.check.fail("alarm", "%s counts %v heads with a digest that cannot be", o.node.name, n)
		}
	}
	return all
}

// A known life is what a node knows of it.
type knownLife struct {
	Node    string `json:"node"`
	Epoch   uint64 `json:"epoch"`
	State   string `json:"state"`
	Applied uint64 `json:"applied"`
	Digest  string `json:"digest"`
}

// digests compares what the nodes have of every life.
func (c *Cluster) digests() {
	if c.opts.Nodes == 1 {
		return
	}
	type key struct {
		node  string
		epoch uint64
	}
	lives := map[key]map[string][]string{} // what is known → by whom
	up := 0
	for _, o := range c.observers {
		if !o.node.isUp() {
			continue
		}
		up++
		b, err := o.get("/starling/v1/cluster")
		var answer struct {
			Lives []knownLife `json:"lives"`
		}
		if err == nil {
			err = json.Unmarshal(b, &answer)
		}
		if err != nil {
			c.check.fail("diverge", "at the end %s does not tell what it has: %v", o.node.name, err)
			continue
		}
		for _, l := range answer.Lives {
			k, what := key{l.Node, l.Epoch}, fmt.Sprintf("%s, applied %d, digest %s", l.State, l.Applied, l.Digest)
			if l.State == "dropped" { // what is left of it differs, and does not matter
				what = l.State
			}
			if lives[k] == nil {
				lives[k] = map[string][]string{}
			}
			lives[k][what] = append(lives[k][what], o.node.name)
		}
	}
	for k, known := range lives {
		by := 0
		for _, names := range known {
			by += len(names)
		}
		_, dropped := known["dropped"]
		if len(known) > 1 || by < up && !dropped {
			var all []string
			for _, what := range slices.Sorted(maps.Keys(known)) {
				all = append(all, fmt.Sprintf("%s: %s", strings.Join(known[what], ", "), what))
			}
			c.check.fail("diverge", "at the end life %.8s/%d is not the same everywhere: %s", k.node, k.epoch, strings.Join(all, "; "))
		}
	}
}
