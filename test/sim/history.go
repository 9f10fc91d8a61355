package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A history is what happened in a run, in lines. It is bounded: of a long run
// the end is kept.
type history struct {
	start  time.Time
	ledger *ledger // what writers did

	mu    sync.Mutex
	lines []string
	lost  int
}

const maxHistory = 100_000

func (h *history) log(format string, args ...any) {
	line := fmt.Sprintf("%8.3f "+format, append([]any{time.Since(h.start).Seconds()}, args...)...)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lines) == maxHistory {
		h.lost += maxHistory / 2
		h.lines = append(h.lines[:0], h.lines[maxHistory/2:]...)
	}
	h.lines = append(h.lines, line)
}

// Write takes the log of a node (zapcore.WriteSyncer).
func (h *history) Write(line []byte) (int, error) {
	h.log("%s", line[:max(0, len(line)-1)])
	return len(line), nil
}

// Sync does nothing.
func (h *history) Sync() error { return nil }

// last gives the end of it.
func (h *history) last(n int) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.lines[max(0, len(h.lines)-n):]...)
}

// save writes all of it to a directory.
func (h *history) save(dir, name string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	file := filepath.Join(dir, name+".history")
	f, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if h.lost > 0 {
		fmt.Fprintf(f, "(%d lines before these were dropped)\n", h.lost)
	}
	for _, l := range h.lines {
		fmt.Fprintln(f, l)
	}
	return file, f.Close()
}

// length is how long the run was, in its own time.
func (h *history) length() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lines) == 0 {
		return "0s"
	}
	return h.lines[len(h.lines)-1][:8] + " s"
}
