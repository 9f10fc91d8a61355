package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/node"
)

// How long a transfer may stand still. A leader that has all of a backup needs
// time to put it into the log.
const (
	backupPatience  = time.Minute
	restorePatience = 5 * time.Minute
)

func backupCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Save what is in the log of the cluster into a file",
		Long: `Save what must survive (persistent instances, settings of services, what operators
have set, accounts) into FILE, as it is at one moment. The leader of the log makes it,
whichever node is asked; nothing waits for it. Ephemeral instances are not in it: their
clients register them again.

FILE appears only once all of it is there, checked and on disk; one of that name is
replaced. With - it goes to standard output, and whoever reads that has to heed the
exit status. It holds passwords of health checks and hashes of those of accounts: it
is readable by its owner only.`,
		Example: `  starling backup starling.backup
  starling backup "/backup/starling-$(date +%F).backup" --server 10.0.0.1
  starling backup - | ssh store 'cat >starling.backup'`,
		Args: needsFile,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			ctx, stop := p.untilStopped(c.Context())
			defer stop()
			if args[0] == "-" {
				if r.json {
					return errors.New("--json and - exclude each other: both print")
				}
				if isTerminal(p.stdout) {
					return errors.New("a backup is nothing for a terminal: name a file, or send the output elsewhere")
				}
				_, err := fetch(ctx, client, p.stdout)
				return failed(err)
			}
			b, info, err := saveBackup(ctx, client, args[0], p.log.check)
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, struct {
					File string `json:"file"`
					*api.Backup
					node.BackupInfo
				}{args[0], b, info}))
			}
			fmt.Fprintf(p.stdout, "%s: %s, as of entry %d of the log of %s (%s)\n", safe(args[0]), rowsText(info.Rows), info.Index, b.Server, bytesText(b.Bytes))
			return nil
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	return c
}

// fetch makes a backup. It fails when nothing comes for a while.
func fetch(ctx context.Context, client *api.Client, w io.Writer) (*api.Backup, error) {
	ctx, moved, stop := patient(ctx, backupPatience)
	defer stop()
	return client.Backup(ctx, &moving{w, moved})
}

// saveBackup puts a backup into a file, all of it or nothing.
func saveBackup(ctx context.Context, client *api.Client, name string, check func(io.Reader) (node.BackupInfo, error)) (*api.Backup, node.BackupInfo, error) {
	var info node.BackupInfo
	target, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) {
		target = name
	} else if err != nil {
		return nil, info, err
	} else if s, err := os.Stat(target); err != nil || !s.Mode().IsRegular() {
		return nil, info, errors.Join(err, fmt.Errorf("%s is there and no file; - is the standard output", name))
	}
	dir := filepath.Dir(target)
	f, err := os.CreateTemp(dir, "."+filepath.Base(target)+".*.tmp") // readable by its owner only
	if err != nil {
		return nil, info, err
	}
	b, err := fetch(ctx, client, f)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		if info, err = check(bufio.NewReaderSize(f, 1<<20)); err != nil {
			err = fmt.Errorf("what %s has sent is no backup: %w", b.Server, err)
		}
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), target)
	}
	if err != nil {
		return nil, info, errors.Join(err, os.Remove(f.Name()))
	}
	// Without it a power cut may take the name away again.
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	return b, info, err
}

func restoreCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	force := false
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Give a new cluster what a backup holds",
		Long: `Put what starling backup has saved into the log of a cluster: a new one that holds
nothing yet. All of it is there afterwards on every node, or nothing. The leader takes
it, whichever node is asked. Clients may be attached meanwhile; the ephemeral instances
that they register are not touched.

With --force all that the log holds is thrown away first, on every node, and there is
no way back but another backup. Make one before.`,
		Example: `  starling restore starling.backup
  starling restore starling.backup --server 10.0.0.1
  starling backup before.backup && starling restore --force starling.backup`,
		Args: needsFile,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return failed(err)
			}
			defer f.Close()
			info, err := p.log.check(bufio.NewReaderSize(f, 1<<20))
			if err != nil {
				return failed(fmt.Errorf("%s is no backup of Starling, or a damaged one: %w", args[0], err))
			}
			size, err := f.Seek(0, io.SeekEnd)
			if err != nil {
				return failed(err)
			}
			ctx, stop := p.untilStopped(c.Context())
			defer stop()
			ctx, moved, stop := patient(ctx, restorePatience)
			defer stop()
			shows := newProgress(p, size)
			restored, err := client.Restore(ctx, f, size, force, func(sent int64) { moved(); shows.sent(sent) })
			shows.end()
			if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeNotEmpty {
				err = errors.Join(errors.New(e.Message), errors.New("restore the backup into a new cluster; or, with --force, into this one, and what it holds is thrown away"))
			}
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, restored))
			}
			rows := restored.Rows
			if rows == nil {
				rows = info.Rows
			}
			fmt.Fprintf(p.stdout, "restored: %s, with entry %d of the log, on %s\n", rowsText(rows), restored.Applied, safe(restored.Name))
			return nil
		},
	}
	r.flags(c, false, false)
	c.Flags().BoolVar(&force, "force", false, "throw away what the cluster holds")
	noFiles(c)
	return c
}

// untilStopped ends the context when the process is to stop, so that what was
// begun is cleaned up.
func (p *process) untilStopped(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	p.notify(signals)
	go func() {
		select {
		case sig := <-signals:
			cancel(fmt.Errorf("stopped by a signal: %v", sig))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// patient ends the context when moved was not called for a while.
func patient(ctx context.Context, d time.Duration) (_ context.Context, moved, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(d, func() { cancel(fmt.Errorf("nothing moved for %s", span(d))) })
	return ctx, func() { t.Reset(d) }, func() {
		t.Stop()
		cancel(nil)
	}
}

// A moving writer tells of what it writes.
type moving struct {
	w     io.Writer
	moved func()
}

func (m *moving) Write(b []byte) (int, error) {
	m.moved()
	return m.w.Write(b)
}

// A progress shows on a terminal how much of something was sent; elsewhere it
// is silent.
type progress struct {
	w    io.Writer // nil: silent
	of   int64
	mu   sync.Mutex
	last time.Time // shown
}

func newProgress(p *process, of int64) *progress {
	s := &progress{of: of, last: time.Now()} // what is quick is not worth a line
	if isTerminal(p.stderr) {
		s.w = p.stderr
	}
	return s
}

func (s *progress) sent(n int64) {
	if s.w == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.last) >= 500*time.Millisecond {
		s.last = now
		fmt.Fprintf(s.w, "\rsent %s of %s  ", bytesText(n), bytesText(s.of))
	}
}

func (s *progress) end() {
	if s.w != nil {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
}

func needsFile(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("needs one FILE")
	}
	return nil
}
