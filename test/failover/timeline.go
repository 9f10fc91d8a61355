package main

import (
	"fmt"
	"slices"
)

// ms is a time in milliseconds since the scenario's first disturbance; what was
// before has negative ones.
type ms int64

func (m ms) String() string { return fmt.Sprintf("%.1f s", float64(m)/1000) }

// A timeline is what happened in one scenario: all that the verdict knows.
type timeline struct {
	Providers []provider `json:"providers"`
	Observers []observer `json:"observers"`
	Views     []view     `json:"views"`
	Marks     []mark     `json:"marks"`
	EndMs     ms         `json:"endMs"` // of the recording
}

// A provider registers one instance.
type provider struct {
	Name    string `json:"name"`
	SDK     string `json:"sdk"`
	Address string `json:"address"`
	Node    string `json:"node"` // that it was connected to when it registered
	UpMs    ms     `json:"upMs"` // when the SDK's call returned
	DiedMs  *ms    `json:"diedMs,omitempty"`
}

func (p *provider) liveAt(t ms) bool { return p.UpMs <= t && (p.DiedMs == nil || t < *p.DiedMs) }

// An observer is a subscriber of an SDK, or a reader, which asks one node over
// HTTP again and again.
type observer struct {
	Name string `json:"name"`
	SDK  string `json:"sdk"`
	Node string `json:"node"` // that it was connected to when it subscribed
}

// A view is what an observer saw, from AtMs until its next view.
type view struct {
	Observer string `json:"observer"`
	AtMs     ms     `json:"atMs"`
	// Seen are names of providers, healthy and enabled ones only; a list may
	// also have addresses that are nobody's.
	Seen []string `json:"seen"`
	// Blind: a reader got no answer, so that it knows nothing.
	Blind bool `json:"blind,omitempty"`
}

// A mark says what was done.
type mark struct {
	AtMs ms     `json:"atMs"`
	What string `json:"what"`
}

// A span is a view with its end, the next view or that of the recording.
type span struct {
	from, to ms
	blind    bool
	seen     map[string]bool
	seenList []string
}

// spans are the views of an observer from 0 on: the last one before is what it
// saw at 0.
func (t *timeline) spans(observer string) []span {
	var views []view
	for _, v := range t.Views {
		if v.Observer == observer && v.AtMs <= t.EndMs {
			views = append(views, v)
		}
	}
	slices.SortStableFunc(views, func(a, b view) int { return int(a.AtMs - b.AtMs) })
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
