package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"time"
)

// failoverSwitch is the name of the file that switches failover on and off
// (F-1).
const failoverSwitch = "00-00---000-VIPSRV_FAILOVER_SWITCH-000---00-00"

// failoverEvery is how often the directory is looked at (F-2).
const failoverEvery = 5 * time.Second

// A failover watches the lists that operators have put into a directory. It
// writes nothing there (F-6).
type failover struct {
	dir string
	log *slog.Logger

	// owned by run
	on     bool
	files  listDir
	lists  map[ServiceID]stored // nil: off
	failed string               // the last failure that was logged
}

// newFailover has the directory of Config.FailoverDir, where "" stands for one
// below that of the cache; nil if it is off, or both are.
func newFailover(cfg *Config, cache *diskCache, log *slog.Logger) *failover {
	dir := cfg.FailoverDir
	switch {
	case dir == "off", dir == "" && cache == nil:
		return nil
	case dir == "":
		dir = filepath.Join(cache.dir, "failover")
	}
	return &failover{dir: dir, log: log, files: listDir{dir: dir}}
}

// run looks at once and every 5 s until the context ends (F-2), and tells what
// has changed: changed is called on this goroutine, never twice with the same.
// Lists are nil while off, and belong to the callee. A nil failover returns.
func (f *failover) run(ctx context.Context, changed func(on bool, lists map[ServiceID]stored)) {
	if f == nil {
		return
	}
	t := time.NewTicker(failoverEvery)
	defer t.Stop()
	for {
		if f.look() {
			changed(f.on, maps.Clone(f.lists))
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// look reads the directory and reports whether something has changed.
func (f *failover) look() bool {
	was := f.on
	var err error
	f.on, err = readSwitch(filepath.Join(f.dir, failoverSwitch), f.on)
	if err != nil {
		f.warn("failover is off: the switch cannot be read", err)
	}
	if f.on != was {
		f.log.Info("failover switch changed", "on", f.on, "dir", f.dir)
	}
	if !f.on {
		f.lists, f.files.files = nil, nil
		return was
	}
	lists, err := f.files.read(time.Now())
	if err != nil {
		f.warn("failover lists are passed over", err)
	}
	// Nothing at all is rather a directory that has gone than what somebody wants:
	// that is what the switch is for (F-3).
	if len(lists) == 0 && f.lists != nil {
		return false
	}
	if was && reflect.DeepEqual(lists, f.lists) {
		return false
	}
	if lists == nil {
		lists = make(map[ServiceID]stored)
	}
	f.lists = lists
	return true
}

// warn tells a failure once, not every 5 s.
func (f *failover) warn(msg string, err error) {
	if text := msg + err.Error(); text != f.failed {
		f.failed = text
		f.log.Warn(msg, "error", err)
	}
}

// readSwitch returns what the first line says that is 1 or 0, and was if none
// is; no file is off, and one that cannot be read is too (F-1). It is read each
// time: it is a few bytes, and may change twice within one tick of the clock.
func readSwitch(path string, was bool) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err == nil && !info.Mode().IsRegular() { // opening a pipe would wait for a writer
		err = errors.New(path + " is not a file")
	}
	if err != nil {
		return false, err
	}
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return false, err
	}
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\ufeff"))) {
		switch string(bytes.TrimSpace(line)) {
		case "1":
			return true, nil
		case "0":
			return false, nil
		}
	}
	return was, nil
}
