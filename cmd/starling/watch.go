package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const (
	watchPeriod = 2 * time.Second        // of --watch without a value
	watchMin    = 100 * time.Millisecond // nobody sees more, and a node has better things to do
)

// watchFlag declares --watch, for commands that [show] what may change while
// one looks at it.
func (r *remote) watchFlag(c *cobra.Command) {
	f := c.Flags()
	f.Var(&watchValue{&r.watch}, "watch", "ask again every `DURATION` until Ctrl-C; with one: --watch=5s")
	f.Lookup("watch").NoOptDefVal = watchPeriod.String()
}

// watched refuses --watch 5s, whose 5s would be an argument, before needs says
// of the arguments what is not the matter.
func (r *remote) watched(needs cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if r.watch > 0 && len(args) > 0 {
			if last := args[len(args)-1]; new(watchValue{new(time.Duration)}).Set(last) == nil {
				return fmt.Errorf("%q is an argument of its own: for a time, write --watch=%s", last, last)
			}
		}
		return needs(c, args)
	}
}

// A watchValue is the time between two questions; zero: there is only one.
type watchValue struct{ d *time.Duration }

func (v *watchValue) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return v.d.String()
}

func (v *watchValue) Type() string { return "duration" }

func (v *watchValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is no duration like %v", s, watchPeriod)
	case d < watchMin:
		return fmt.Errorf("it is at least %v", watchMin)
	}
	*v.d = d
	return nil
}

// show asks a node and prints the answer: as the table that write makes of it,
// or with --json as it is. With --watch it does so again and again until the
// process is told to stop, which is a success: on a terminal in place, elsewhere
// one after the other, of JSON each in a line of its own.
//
// The first answer must be one. Afterwards a node that does not answer is told
// of, and asked again: that it restarts may be what one waits for.
func show[T any](ctx context.Context, r *remote, question func(context.Context) (*T, error), write func(io.Writer, *T) error) error {
	once := func(ctx context.Context) (*T, error) { return ask(ctx, question) }
	out := r.p.stdout
	if r.watch == 0 {
		v, err := once(ctx)
		switch {
		case err != nil:
			return err
		case r.json:
			return writeJSON(out, v)
		}
		return write(out, v)
	}
	ctx, stop := r.p.untilStopped(ctx)
	defer stop()
	screen, redraws := out.(*os.File)
	redraws = redraws && !r.json && isTerminal(screen)
	for first := true; ; first = false {
		v, err := once(ctx)
		var text bytes.Buffer
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil && !redraws:
			if _, err := fmt.Fprintf(r.p.stderr, "starling: %v\n", failed(err)); err != nil {
				return err
			}
		case err != nil:
			fmt.Fprintf(&text, "starling: %v\n", failed(err))
		case r.json:
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			text.Write(append(safeJSON(b), '\n'))
		default:
			if !first && !redraws {
				text.WriteByte('\n')
			}
			if err := write(&text, v); err != nil {
				return err
			}
		}
		b := text.Bytes()
		if redraws {
			rows, columns := sizeOf(screen)
			b = frame(text.String(), fmt.Sprintf("%s, every %v, Ctrl-C ends", time.Now().Format(time.TimeOnly), r.watch), rows, columns)
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.watch):
		}
	}
}

// sizeOf is the size of a terminal as it is now.
func sizeOf(screen *os.File) (rows, columns int) {
	if size, err := unix.IoctlGetWinsize(int(screen.Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 && size.Col > 0 {
		return int(size.Row), int(size.Col)
	}
	return 24, 80
}

// frame is a text that stands in place of what is on a terminal: its head
// first, each line cut to the width, and no more of them than there is room
// for.
func frame(text, head string, rows, columns int) []byte {
	lines := append([]string{head}, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	if most := max(rows-1, 2); len(lines) > most { // the cursor stands below
		left := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("… %s more", count(left, "line", "lines")))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H") // to the top; what is there is overwritten, so that nothing flickers
	for _, l := range lines {
		if r := []rune(l); len(r) > columns {
			l = string(r[:max(columns-1, 0)]) + "…"
		}
		b.WriteString(l + "\x1b[K\n") // and cleared behind it
	}
	b.WriteString("\x1b[J")
	return b.Bytes()
}
