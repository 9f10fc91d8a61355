package node

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
)

// switches are what operators have switched: in the table of the log, for all
// nodes, and on this node alone. They are put together and parsed when one of
// them changes; everybody reads the result.
type switches struct {
	usual nacos.Switches // of a node that nobody has switched anything at
	now   atomic.Pointer[nacos.Switches]
	log   *zap.Logger

	// checkedAgain is called before the health checks are on again, pushed after
	// pushes are on or off. Neither blocks, nor calls back.
	checkedAgain func()
	pushed       func(bool)

	mu       sync.Mutex
	table    map[string]string
	here     map[string]string // on this node alone; comes first
	unusable map[string]string // of the table, as it was logged
}

func newSwitches(usual nacos.Switches, log *zap.Logger) *switches {
	s := &switches{usual: usual, log: log, here: map[string]string{}, unusable: map[string]string{}}
	s.now.Store(&usual)
	return s
}

// get returns those that count. They are not to be changed.
func (s *switches) get() *nacos.Switches { return s.now.Load() }

// tableIs takes over what is in the table. What was said on this node alone of
// a switch that has been set there, or has changed, is over: the last word
// counts.
func (s *switches) tableIs(table map[string]string, set []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.here {
		if table[name] != s.table[name] || slices.Contains(set, name) {
			delete(s.here, name)
		}
	}
	s.table = table
	s.settleLocked()
}

// setHere sets a switch on this node alone; to "": no longer.
func (s *switches) setHere(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value == "" {
		delete(s.here, name)
	} else {
		s.here[name] = value
	}
	s.settleLocked()
}

// settleLocked works out what counts now, and sees to what does not read it
// each time. A value that this release cannot read is passed over: one that can
// may have written it.
func (s *switches) settleLocked() {
	next := s.usual
	for _, name := range slices.Sorted(maps.Keys(s.table)) {
		value := s.table[name]
		err := next.Set(name, value)
		if err == nil {
			delete(s.unusable, name)
			continue
		}
		if s.unusable[name] != value {
			s.unusable[name] = value
			s.log.Warn("a switch is ignored: this release cannot read its value", zap.String("name", name), zap.String("value", value[:min(len(value), 200)]), zap.Error(err))
		}
	}
	for name, value := range s.here {
		_ = next.Set(name, value) // it was parsed before
	}
	was := s.now.Load()
	if next.HealthCheckEnabled && !was.HealthCheckEnabled {
		s.checkedAgain()
	}
	s.now.Store(&next)
	if next.PushEnabled != was.PushEnabled {
		s.pushed(next.PushEnabled)
	}
}
