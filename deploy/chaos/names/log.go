package names

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// maxQueries are kept; the oldest make room. Counts have all.
const maxQueries = 10000

// A Query is one question.
type Query struct {
	At      time.Time
	Name    string // in small letters, without the dot at the end
	Type    string // "A", "AAAA", "ANY" …
	Net     string // "udp" or "tcp"
	Asker   netip.Addr
	Answer  []netip.Addr // in their order; none too if the server fails
	Failure Mode
}

// A Kind is what queries are counted by.
type Kind struct {
	Name  string
	Type  string
	Asker netip.Addr
}

// log is guarded by Server.mu.
type log struct {
	ring   []Query
	next   int // in ring, once that is full
	counts map[Kind]int
}

func (l *log) add(q Query) {
	if q.Failure.silent || q.Failure.servfail {
		q.Answer = nil
	}
	if l.counts == nil {
		l.counts = map[Kind]int{}
	}
	l.counts[Kind{q.Name, q.Type, q.Asker}]++
	if len(l.ring) < maxQueries {
		l.ring = append(l.ring, q)
		return
	}
	l.ring[l.next] = q
	l.next = (l.next + 1) % maxQueries
}

// Queries are the last ones, oldest first.
func (s *Server) Queries() []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.log.ring[s.log.next:], s.log.ring[:s.log.next])
}

// Counts says how often what was asked by whom since the start.
func (s *Server) Counts() map[Kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.log.counts)
}
