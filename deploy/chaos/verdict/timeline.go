package verdict

import (
	"fmt"
	"slices"
)

// Millis is a time in milliseconds since the scenario's first disturbance; what was
// before has negative ones.
type Millis int64

func (m Millis) String() string { return fmt.Sprintf("%.1f s", float64(m)/1000) }

// A Timeline is what happened in one run: all that the verdict knows. Its lists
// of changes are in the order of time.
type Timeline struct {
	Providers []Provider   `json:"providers"`
	Observers []Observer   `json:"observers"`
	Views     []View       `json:"views"`
	Steps     []Step       `json:"steps"`
	Nodes     []NodeChange `json:"nodes"`
	Links     []LinkChange `json:"links"`
	Writes    []Write      `json:"writes"`
	Kept      []Kept       `json:"kept"`
	Marks     []Mark       `json:"marks"`
	EndMs     Millis       `json:"endMs"` // of the recording
}

// A Provider registers one instance.
type Provider struct {
	Name    string `json:"name"`
	SDK     string `json:"sdk"`
	Address string `json:"address"`
	Group   string `json:"group"` // of clients, in whose place it is
	Node    string `json:"node"`  // that it was connected to when it registered; "" if not known
	// RedoMs is how long its SDK takes at most, once connected again, until it
	// repeats the registration.
	RedoMs Millis `json:"redoMs"`
	// Beats: it lives by beats over HTTP instead of by a connection.
	Beats bool `json:"beats,omitempty"`
	// Dialable: its address accepts connections as long as it lives.
	Dialable bool    `json:"dialable"`
	UpMs     Millis  `json:"upMs"` // when the SDK's call returned
	DiedMs   *Millis `json:"diedMs,omitempty"`
	// Left: it did not die but deregistered, at DiedMs.
	Left bool `json:"left,omitempty"`
}

func (p *Provider) LiveAt(t Millis) bool { return p.UpMs <= t && (p.DiedMs == nil || t < *p.DiedMs) }

// An Observer is a subscriber of an SDK, or a reader, which asks one node over
// HTTP again and again.
type Observer struct {
	Name  string `json:"name"`
	SDK   string `json:"sdk"`
	Group string `json:"group"`
	Node  string `json:"node"` // that it was connected to when it subscribed; "" if not known
	// Reader: it asks Node and no other. A subscriber may be anywhere once its
	// node or the way there has failed.
	Reader bool `json:"reader,omitempty"`
	// RedoMs is as of a Provider; PollsMs is the longest pause between two
	// questions of one that is not told.
	RedoMs  Millis `json:"redoMs"`
	PollsMs Millis `json:"pollsMs,omitempty"`
}

// A NodeState is what was made of a node.
type NodeState string

const (
	Starting NodeState = "starting" // its process runs and is not ready yet
	Up       NodeState = "up"
	Frozen   NodeState = "frozen"   // SIGSTOP
	Stopping NodeState = "stopping" // SIGTERM: it hands its clients over
	Down     NodeState = "down"     // its process is gone
)

// A NodeChange is the state of a node from AtMs on. A node that has none yet is
// not there.
type NodeChange struct {
	AtMs  Millis    `json:"atMs"`
	Node  string    `json:"node"`
	State NodeState `json:"state"`
}

// A LinkChange says what becomes, from AtMs on, of what one end sends to
// another. Ends are nodes, groups of clients, and "host", where readers are.
type LinkChange struct {
	AtMs    Millis  `json:"atMs"`
	From    string  `json:"from"`
	To      string  `json:"to"`
	Cut     bool    `json:"cut,omitempty"`
	Loss    float64 `json:"loss,omitempty"` // share of packets
	DelayMs Millis  `json:"delayMs,omitempty"`
	Rate    int64   `json:"rate,omitempty"` // bytes a second
}

// A Step is a fault of the schedule, from its beginning to when it was mended.
type Step struct {
	Fault  string `json:"fault"`  // as the command line names it
	Target string `json:"target"` // a node, or "" if it concerns all
	Says   string `json:"says"`   // for people
	FromMs Millis `json:"fromMs"`
	ToMs   Millis `json:"toMs"`
}

// A Write is one request for a persistent instance: it must survive all faults
// once it was acknowledged.
type Write struct {
	Address    string `json:"address"`
	Deregister bool   `json:"deregister,omitempty"`
	Node       string `json:"node"` // that was asked
	FromMs     Millis `json:"fromMs"`
	ToMs       Millis `json:"toMs"` // of the answer
	Acked      bool   `json:"acked"`
	Error      string `json:"error,omitempty"`
}

// Kept are the persistent instances that a node lists at the end.
type Kept struct {
	Node      string   `json:"node"`
	Addresses []string `json:"addresses"`
	Error     string   `json:"error,omitempty"` // it did not answer
}

// A View is what an observer saw, from AtMs until its next view.
type View struct {
	Observer string `json:"observer"`
	AtMs     Millis `json:"atMs"`
	// Seen are names of providers, healthy and enabled ones only; a list may
	// also have addresses that are nobody's.
	Seen []string `json:"seen"`
	// Blind: a reader got no answer, so that it knows nothing.
	Blind bool `json:"blind,omitempty"`
}

// A Mark says what was done.
type Mark struct {
	AtMs Millis `json:"atMs"`
	What string `json:"what"`
}

// A span is a view with its end, the next view or that of the recording.
type span struct {
	from, to Millis
	blind    bool
	seen     map[string]bool
	seenList []string
}

// spans are the views of an observer from 0 on: the last one before is what it
// saw at 0.
func (t *Timeline) spans(observer string) []span {
	var views []View
	for _, v := range t.Views {
		if v.Observer == observer && v.AtMs <= t.EndMs {
			views = append(views, v)
		}
	}
	slices.SortStableFunc(views, func(a, b View) int { return int(a.AtMs - b.AtMs) })
	var list []span
	for i, v := range views {
		s := span{from: max(v.AtMs, 0), to: t.EndMs, blind: v.Blind, seenList: v.Seen, seen: map[string]bool{}}
		if i+1 < len(views) {
			s.to = views[i+1].AtMs
		}
		if s.to <= 0 && i+1 < len(views) {
			continue
		}
		for _, name := range v.Seen {
			s.seen[name] = true
		}
		list = append(list, s)
	}
	return list
}
