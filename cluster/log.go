package cluster

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// An end says that the cluster has stopped. memberlist does not wait for its
// timers, which have something to say then of members that it let go.
type end struct {
	sync.RWMutex
	over bool
}

// logBridge takes the lines of memberlist, "[LEVEL] memberlist: text", to zap.
// What repeats, a peer that keeps knocking above all, is passed on once in 10
// seconds; the rest is for debugging.
type logBridge struct {
	after *end
	log   *zap.Logger

	mu   sync.Mutex
	last map[string]time.Time // beginnings of lines
}

const (
	quietFor   = 10 * time.Second
	lineKey    = 40  // bytes that make lines the same, those before a number
	maxLineKey = 256 // lines remembered
)

// reported are lines about what this package says itself, once.
var reported = [][]byte{
	[]byte("ignoring alive message for"),
	[]byte("Conflicting address for"),
}

// advice is what memberlist's lines do not say: what to do about them.
var advice = []struct {
	about []byte
	text  string
}{
	{[]byte("no installed keys could decrypt"), ": it has other secrets than this node, see --gossip-key-file"},
	{[]byte("state is encrypted and encryption is not configured"), ": it has secrets and this node has none, see --gossip-key-file"},
	{[]byte("encryption is configured but remote state is not encrypted"), ": this node has secrets and it has none, see --gossip-key-file"},
}

// closing is part of lines that a stop brings.
var closing = []byte("use of closed network connection")

func (w *logBridge) Write(line []byte) (int, error) {
	w.after.RLock() // so that no line is on its way when Stop returns
	defer w.after.RUnlock()
	if w.after.over {
		return len(line), nil
	}
	level, text := zapcore.InfoLevel, bytes.TrimSpace(line)
	if len(text) > 0 && text[0] == '[' {
		if name, rest, ok := bytes.Cut(text[1:], []byte("] ")); ok {
			text = rest
			switch string(name) {
			case "DEBUG":
				level = zapcore.DebugLevel
			case "WARN":
				level = zapcore.WarnLevel
			case "ERR", "ERROR":
				level = zapcore.ErrorLevel
			}
		}
	}
	text = bytes.TrimPrefix(text, []byte("memberlist: "))
	if level > zapcore.DebugLevel && (bytes.Contains(text, closing) || w.repeats(text)) {
		level = zapcore.DebugLevel
	}
	hint := ""
	for _, a := range advice {
		if bytes.Contains(text, a.about) {
			hint = a.text
		}
	}
	if entry := w.log.Check(level, string(text)+hint); entry != nil {
		entry.Write()
	}
	return len(line), nil
}

func (w *logBridge) repeats(text []byte) bool {
	for _, r := range reported {
		if bytes.HasPrefix(text, r) {
			return true
		}
	}
	end := min(len(text), lineKey)
	if n := bytes.IndexAny(text[:end], "0123456789"); n > 0 {
		end = n
	}
	key := string(text[:end])
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.last[key]; ok && now.Sub(last) < quietFor {
		return true
	}
	if w.last == nil || len(w.last) >= maxLineKey {
		w.last = map[string]time.Time{}
	}
	w.last[key] = now
	return false
}

// once tells whether something is said for the first time.
func (c *Cluster) once(what ...string) bool {
	key := strings.Join(what, "\x00")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said[key] {
		return false
	}
	if len(c.said) >= 4096 { // an attacker's noise; then some is said again
		clear(c.said)
	}
	c.said[key] = true
	return true
}
