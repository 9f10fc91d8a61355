package raftstore

import (
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// sayAgain is how long a warning of the Raft library is not repeated for the
// same peer: it says so at each failed heartbeat, twenty times a second (C44).
const sayAgain = 10 * time.Second

// said remembers warnings. Nothing but the number of peers and of different
// texts bounds it, and strangers choose their names, so it starts anew when it
// is full, and there are only so many in a time.
type said struct {
	mu    sync.Mutex
	last  map[string]*repeats
	since time.Time
	lines int // since then
}

type repeats struct {
	at     time.Time
	missed int // since then
}

const (
	maxSaid  = 256
	maxLines = 40 // in sayAgain
)

// now tells whether a warning is to be written, and how many equal ones were
// not since the last time.
func (s *said) now(key string) (missed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.last[key]
	if r != nil && time.Since(r.at) < sayAgain {
		r.missed++
		return 0, false
	}
	if time.Since(s.since) >= sayAgain {
		s.since, s.lines = time.Now(), 0
	}
	if s.lines++; s.lines > maxLines {
		return 0, false
	}
	if r == nil {
		if len(s.last) >= maxSaid {
			clear(s.last)
		}
		r = &repeats{}
		s.last[key] = r
	}
	missed = r.missed
	r.at, r.missed = time.Now(), 0
	return missed, true
}

// quiet are messages of the library at warning or error that say nothing of
// which an operator should hear: connections end whenever a node does, and a
// log that begins, or a leader that stops, brings elections. Who leads then, the
// store says; and so it does if nobody does.
var quiet = map[string]bool{
	"heartbeat timeout reached, starting election":        true,
	"Election timeout reached, restarting election":       true,
	"no known peers, aborting election":                   true,
	"not part of stable configuration, aborting election": true,
	"failed to get previous log":                          true,
	// Membership has said that the node is gone.
	"failed to heartbeat to":                     true,
	"failed to appendEntries to":                 true,
	"appendEntries rejected, sending older logs": true,
	"peer has newer term, stopping replication":  true,
	"previous log term mis-match":                true,
	"failed to decode incoming command":          true,
	"failed to flush response":                   true,
	"failed to accept connection":                true,
	"found temporary snapshot":                   true,
}

// A bridge hands the log of the Raft library to zap. What the library calls
// information goes to debug: the store itself says what is worth it.
type bridge struct {
	log     *zap.Logger
	name    string
	implied []any
	said    *said
}

func newBridge(l *zap.Logger) *bridge {
	return &bridge{log: l, said: &said{last: map[string]*repeats{}}}
}

func (b *bridge) Log(level hclog.Level, msg string, args ...any) {
	to := zapcore.DebugLevel
	switch {
	case level == hclog.Trace || level == hclog.Off:
		return
	case level >= hclog.Warn && !quiet[msg] && !strings.HasPrefix(msg, "rejecting "):
		to = zapcore.WarnLevel
	}
	if !b.log.Core().Enabled(to) {
		return
	}
	fields := make([]zap.Field, 0, 4)
	var key strings.Builder
	key.WriteString(msg)
	for _, list := range [][]any{b.implied, args} {
		for i := 0; i+1 < len(list); i += 2 {
			k, v := fmt.Sprint(list[i]), list[i+1]
			if f, ok := v.(hclog.Format); ok && len(f) > 0 {
				v = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
			}
			if k == "peer" || k == "target" || k == "id" {
				key.WriteString(fmt.Sprint(" ", v))
			}
			fields = append(fields, zap.Any(k, v))
		}
	}
	if to == zapcore.WarnLevel {
		missed, ok := b.said.now(key.String())
		if !ok {
			return
		}
		if missed > 0 {
			fields = append(fields, zap.Int("repeated", missed))
		}
	}
	b.log.Log(to, msg, fields...)
}

func (b *bridge) Trace(msg string, args ...any) { b.Log(hclog.Trace, msg, args...) }
func (b *bridge) Debug(msg string, args ...any) { b.Log(hclog.Debug, msg, args...) }
func (b *bridge) Info(msg string, args ...any)  { b.Log(hclog.Info, msg, args...) }
func (b *bridge) Warn(msg string, args ...any)  { b.Log(hclog.Warn, msg, args...) }
func (b *bridge) Error(msg string, args ...any) { b.Log(hclog.Error, msg, args...) }

func (b *bridge) IsTrace() bool { return false }
func (b *bridge) IsDebug() bool { return b.log.Core().Enabled(zapcore.DebugLevel) }
func (b *bridge) IsInfo() bool  { return b.IsDebug() }
func (b *bridge) IsWarn() bool  { return b.log.Core().Enabled(zapcore.WarnLevel) }
func (b *bridge) IsError() bool { return b.IsWarn() }

func (b *bridge) ImpliedArgs() []any { return b.implied }
func (b *bridge) Name() string       { return b.name }

func (b *bridge) With(args ...any) hclog.Logger {
	c := *b
	c.implied = append(append([]any{}, b.implied...), args...)
	return &c
}

func (b *bridge) Named(name string) hclog.Logger {
	if b.name != "" {
		name = b.name + "." + name
	}
	return b.ResetNamed(name)
}

func (b *bridge) ResetNamed(name string) hclog.Logger {
	c := *b
	c.name = name
	return &c
}

func (b *bridge) SetLevel(hclog.Level)  {} // zap's level counts
func (b *bridge) GetLevel() hclog.Level { return hclog.Debug }

func (b *bridge) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return zap.NewStdLog(b.log)
}

func (b *bridge) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return b.StandardLogger(o).Writer()
}
