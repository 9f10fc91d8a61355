package api

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Kinds of a [Change].
const (
	KindCame    = "came"
	KindChanged = "changed"
	KindWent    = "went"
	KindStayed  = "stayed" // readers saw nothing; who stands behind it changed, or will
)

// History is the answer to GET /starling/v1/history: what all nodes together
// remember of the past of a service.
type History struct {
	Service
	Instance string        `json:"instance,omitempty"` // ip:port, if only one was asked for
	Changes  []Change      `json:"changes"`            // oldest first
	Nodes    []HistoryNode `json:"nodes"`              // that were asked, by id
}

// A HistoryNode is what a node contributed to a [History].
type HistoryNode struct {
	Node string `json:"node"`
	Name string `json:"name"`
	// Error says why it did not answer; "": it did. What only it has seen is
	// then missing.
	Error string `json:"error,omitempty"`
	// Forgotten: it had older events of this service and forgot them. What it
	// remembers begins at Oldest.
	Forgotten bool      `json:"forgotten,omitempty"`
	Oldest    time.Time `json:"oldest,omitzero"`
}

// A Change is one visible change of one instance, told by all nodes that saw
// it.
type Change struct {
	When time.Time `json:"when"` // the earliest that a node saw it
	InstanceKey
	Kind        string `json:"kind"`        // came, changed, went or stayed
	Cause       string `json:"cause"`       // a few words, always the same for the same cause
	Explanation string `json:"explanation"` // a sentence for people; "" for a cause this release does not know
	// Node wrote the change: the client was attached to it. "": each node
	// came to it by itself (the end of an orphan's lease).
	Node     string    `json:"node"`
	NodeName string    `json:"nodeName"`
	Epoch    uint64    `json:"epoch,omitzero"` // which run of that node
	Client   string    `json:"client"`         // id of the client whose claim came, changed or went; "operator ADDRESS" if one did it
	Before   *Instance `json:"before,omitempty"`
	After    *Instance `json:"after,omitempty"`
	SeenBy   []string  `json:"seenBy"` // ids of the nodes that remember it
	// Collapsed are those of them to which it came as one with earlier
	// changes, so that they saw a change of another kind.
	Collapsed []string `json:"collapsed,omitempty"`
}

// An InstanceKey tells an instance from the others of its service.
type InstanceKey struct {
	IP      string `json:"ip"`
	Port    int    `json:"port"`
	Cluster string `json:"cluster"` // of the service, as in Nacos
}

// An Instance is what readers see of one.
type Instance struct {
	ID       string            `json:"id,omitempty"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Enabled  bool              `json:"enabled"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// A NodeHistory is what one node remembers of a service. It is no JSON type:
// nodes tell each other in their own way.
type NodeHistory struct {
	Node, Name string
	Events     []Event // oldest first
	Forgotten  bool    // there were older ones
	Error      string  // why there is no answer, for people; "" if there is one
}

// An Event is a change as one node saw it. Clocks are hybrid: milliseconds
// since 1970 << 16 | counter.
type Event struct {
	At    uint64 // clock of the node that saw it
	Node  string // id of the node that wrote the change, with
	Epoch uint64 // the epoch of its life then
	// Clock of the node that wrote it. With its life and the instance it
	// identifies the change in the cluster.
	Clock         uint64
	Cause, Client string
	InstanceKey
	// Nil: it came; it went. If both are equal, or nil, there was nothing to see.
	Before, After *Instance
}

func (e *Event) kind() string {
	switch {
	case e.Before == nil && e.After == nil:
		return KindStayed // an eviction of what was not shown
	case e.Before == nil:
		return KindCame
	case e.After == nil:
		return KindWent
	case e.Before.equal(e.After):
		return KindStayed
	}
	return KindChanged
}

func (i *Instance) equal(o *Instance) bool {
	return i.ID == o.ID && i.Weight == o.Weight && i.Healthy == o.Healthy && i.Enabled == o.Enabled && maps.Equal(i.Metadata, o.Metadata)
}

// explanations are of the causes that package registry has. Those that each
// node finds by itself, rather than being told by the node that owns the
// client, are marked. So are ends of edits: the log names those, but not where
// a backup takes its place.
var explanations = map[string]struct {
	text string
	each bool
}{
	"registered":                 {text: "A client registered it."},
	"changed":                    {text: "Its client registered it with other values."},
	"replaced":                   {text: "Its client published something else for the service instead."},
	"deregistered":               {text: "A client deregistered it: an orderly stop, or somebody's call of the API."},
	"connection lost":            {text: "The connection of its client ended without a deregistration: the process was killed, crashed or lost its network."},
	"connection idle":            {text: "Its client was silent and did not answer when asked: the process hangs, or its host or network is gone."},
	"push not acknowledged":      {text: "Its client did not acknowledge what it was sent, so its connection was closed: the process hangs, or takes nothing any more."},
	"node stopped":               {text: "The node that its client was attached to stopped."},
	"beat missed":                {text: "No beat came in time over HTTP; it counts as unhealthy."},
	"beat resumed":               {text: "Its beats came again; it counts as healthy."},
	"beat timeout":               {text: "No beat came over HTTP for so long that it was removed: the process is gone or cannot reach the cluster."},
	"check failed":               {text: "Its health check found it unhealthy."},
	"check passed":               {text: "Its health check found it healthy again."},
	"operator":                   {text: "An operator edited it."},
	"operator's override ended":  {text: "What an operator had set for it ended.", each: true},
	"evicted by an operator":     {text: "An operator evicted it: it stays out, whoever registers it, until that is lifted (starling evict --lift)."},
	"eviction lifted":            {text: "An operator lifted its eviction: it is shown if a client has it registered."},
	"eviction ended":             {text: "It was evicted until it was gone, and it has been gone for long enough; or a backup was restored that knows nothing of it.", each: true},
	"registration while evicted": {text: "A client registered it and was told that an operator evicted it; it is shown once that is lifted."},
	"moving":                     {text: "The connection of its client ended while its node drained, stood still or a node was silent: the client is expected to connect to another node."},
	"node gone":                  {text: "Its node is gone, and another showed what had been removed meanwhile.", each: true},
	"no longer hidden":           {text: "What had hidden it is too old to count.", each: true},
	"orphan adopted":             {text: "Its node was gone, and its client registered it again with another node.", each: true},
	"orphan expired":             {text: "Its node was gone, and its client did not register it again before the lease ended.", each: true},
	"probe failed":               {text: "Its node was silent, its client did not come to another, and its address did not answer when dialled.", each: true},
	"returned":                   {text: "Its node came back.", each: true},
}

// eachWithin is how far apart nodes may find the same by themselves: leases end
// by an absolute clock, and are looked at every second.
const eachWithin = 10 * time.Second

// MergeHistory makes one history of what each node remembers, oldest change
// first. Names are of nodes that have no history here (they left); they may be
// nil.
//
// Events that name the same life, clock and instance are one change, seen by
// several nodes. Where nodes disagree on its kind the node that wrote the change
// is right: to the others it came together with earlier changes, of which only
// the newest travels. What every node finds by itself has no such name;
// then the same cause, kind, instance and client at about the same time, each
// time seen by other nodes, is one change.
//
// The order of nodes does not matter. The result shares the instances.
func MergeHistory(nodes []NodeHistory, names map[string]string) []Change {
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b NodeHistory) int { return cmp.Compare(a.Node, b.Node) })
	type id struct {
		node         string
		epoch, clock uint64
		InstanceKey
		time int // to one node the same change may happen again: a restored backup brings back what it was
	}
	type sight struct {
		by string // the node that saw it
		*Event
	}
	sights := map[id][]sight{}
	called := map[string]string{}
	maps.Copy(called, names)
	for i := range nodes {
		n := &nodes[i]
		if n.Name != "" {
			called[n.Node] = n.Name
		}
		type kind struct {
			id
			kind string
		}
		times := map[kind]int{}
		for j := range n.Events {
			e := &n.Events[j]
			k := id{e.Node, e.Epoch, e.Clock, e.InstanceKey, 0}
			of := kind{k, e.kind()}
			k.time, times[of] = times[of], times[of]+1
			sights[k] = append(sights[k], sight{n.Node, e})
		}
	}

	var all []merged
	for k, group := range sights {
		var kinds []*merged // few: three at most
		find := func(kind string) *merged {
			i := slices.IndexFunc(kinds, func(m *merged) bool { return m.Kind == kind })
			if i < 0 {
				return nil
			}
			return kinds[i]
		}
		add := func(s sight) {
			m := find(s.kind())
			if m == nil {
				m = &merged{Change: Change{InstanceKey: k.InstanceKey, Kind: s.kind(), Cause: s.Cause, Explanation: explanations[s.Cause].text,
					Node: k.node, NodeName: called[k.node], Epoch: k.epoch, Client: s.Client, Before: s.Before, After: s.After}, at: s.At, clock: k.clock}
				kinds = append(kinds, m)
			}
			m.at = min(m.at, s.At)
			m.see(s.by)
		}
		for _, s := range group { // the writer's own events first
			if s.by == k.node {
				add(s)
			}
		}
		written := len(kinds)
		for _, s := range group {
			switch {
			case s.by == k.node:
			case written > 0 && find(s.kind()) == nil:
				m := kinds[written-1]
				m.at = min(m.at, s.At)
				m.see(s.by)
				m.Collapsed = append(m.Collapsed, s.by)
			default:
				add(s)
			}
		}
		for _, m := range kinds {
			all = append(all, *m)
		}
	}
	slices.SortFunc(all, func(a, b merged) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.clock, b.clock),
			cmp.Compare(a.IP, b.IP), cmp.Compare(a.Port, b.Port), cmp.Compare(a.InstanceKey.Cluster, b.InstanceKey.Cluster),
			cmp.Compare(a.Node, b.Node), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Kind, b.Kind))
	})
	all = joinEach(all)
	changes := make([]Change, len(all))
	for i := range all {
		m := &all[i]
		slices.Sort(m.SeenBy)
		slices.Sort(m.Collapsed)
		m.When = millis(m.at)
		changes[i] = m.Change
	}
	return changes
}

// A merged is a change in the making.
type merged struct {
	Change
	at, clock uint64
}

// see adds a node to those that saw the change.
func (m *merged) see(node string) {
	if !slices.Contains(m.SeenBy, node) {
		m.SeenBy = append(m.SeenBy, node)
	}
}

// joinEach makes one change of what several nodes found by themselves. It
// takes and returns them by time.
func joinEach(all []merged) []merged {
	type like struct {
		cause, kind, client string
		InstanceKey
	}
	open := map[like][]int{} // indices in out of changes that others may join
	out := all[:0]
	for _, m := range all {
		if !explanations[m.Cause].each {
			out = append(out, m)
			continue
		}
		k := like{m.Cause, m.Kind, m.Client, m.InstanceKey}
		open[k] = slices.DeleteFunc(open[k], func(i int) bool { return millis(m.at).Sub(millis(out[i].at)) > eachWithin })
		joined := false
		for _, i := range open[k] {
			first := &out[i]
			if slices.ContainsFunc(m.SeenBy, func(n string) bool { return slices.Contains(first.SeenBy, n) }) {
				continue // to one node it happened twice
			}
			first.SeenBy = append(first.SeenBy, m.SeenBy...)
			first.Collapsed = append(first.Collapsed, m.Collapsed...)
			if first.Node != m.Node || first.Epoch != m.Epoch {
				first.Node, first.NodeName, first.Epoch = "", "", 0
			}
			joined = true
			break
		}
		if !joined {
			open[k] = append(open[k], len(out))
			out = append(out, m)
		}
	}
	return out
}

// millis is the time of a hybrid clock.
func millis(clock uint64) time.Time { return time.UnixMilli(int64(clock >> 16)).UTC() }

// NewHistory puts together the answer for a service, and for one of its
// instances if ip is not "".
func NewHistory(s Service, ip string, port int, nodes []NodeHistory, names map[string]string) *History {
	h := &History{Service: s, Changes: []Change{}, Nodes: []HistoryNode{}}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		n := &nodes[i]
		at := HistoryNode{Node: n.Node, Name: n.Name, Error: n.Error, Forgotten: n.Forgotten}
		if len(n.Events) > 0 && n.Forgotten {
			at.Oldest = millis(n.Events[0].At)
		}
		h.Nodes = append(h.Nodes, at)
		if ip == "" {
			continue
		}
		var of []Event
		for _, e := range n.Events {
			if e.IP == ip && e.Port == port {
				of = append(of, e)
			}
		}
		n.Events = of
	}
	slices.SortFunc(h.Nodes, func(a, b HistoryNode) int { return cmp.Compare(a.Node, b.Node) })
	if ip != "" {
		h.Instance = JoinAddress(ip, port)
	}
	h.Changes = append(h.Changes, MergeHistory(nodes, names)...)
	return h
}
