// Command durable starts clusters of real processes, breaks them in the ways that
// what is in the log must survive, and judges what clients were told against
// what the nodes have afterwards.
//
//	durable [-bin bin/starling] [-run PATTERN] [-full] [-keep] [-list]
//
// Start reading at the table in scenarios.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin/starling", "the server's `file`")
	pattern := flag.String("run", "", "only the scenarios whose names match the `regexp`")
	full := flag.Bool("full", false, "all scenarios, with more writes: three minutes")
	keep := flag.Bool("keep", false, "keep data and logs also of what passes")
	list := flag.Bool("list", false, "list the scenarios")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()

	err := errors.New("unexpected arguments")
	switch only, bad := regexp.Compile(*pattern); {
	case flag.NArg() > 0:
	case bad != nil:
		err = bad
	case *list:
		err = nil
		for _, s := range scenarios {
			fmt.Printf("%-22s %s\n", s.name, s.what)
		}
	default:
		err = run(ctx, *bin, only, *full, *keep)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "durable:", err)
		os.Exit(1)
	}
}

// A stage is what scenarios play on: a cluster that stays from one to the next,
// and what clients have written to it.
type stage struct {
	bin  string
	dir  string
	full bool

	c    *cluster // nil: the next scenario makes one
	l    *ledger
	made int // clusters
	next int // number of the next write
	open []*cluster
	undo []func() // file systems
}

// errSkipped is why a scenario cannot be played here.
type errSkipped string

func (e errSkipped) Error() string { return string(e) }

func run(ctx context.Context, bin string, only *regexp.Regexp, full, keep bool) (err error) {
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "starling-durable-")
	if err != nil {
		return err
	}
	s := &stage{bin: bin, dir: dir, full: full}
	begin := time.Now()
	ran, failed, skipped := 0, 0, 0
	for i := range scenarios {
		sc := &scenarios[i]
		if ctx.Err() != nil {
			break
		}
		if !only.MatchString(sc.name) || sc.long && !full {
			continue
		}
		start := time.Now()
		said, err := sc.play(ctx, s)
		if err == nil && s.c != nil {
			if noise := s.c.noise(); noise != nil {
				err = errors.New(strings.Join(noise, "\n"))
			}
		}
		ran++
		skip, skips := errors.AsType[errSkipped](err)
		verdict := "ok  "
		switch {
		case skips:
			verdict, said, err = "skip", "skipped: "+string(skip), nil
			skipped++
		case err != nil:
			verdict = "FAIL"
			failed++
		}
		fmt.Printf("%s %-20s %6.1fs  %s\n", verdict, sc.name, time.Since(start).Seconds(), said)
		if err != nil {
			fmt.Printf("       %s\n", strings.ReplaceAll(err.Error(), "\n", "\n       "))
			s.drop() // the next one gets another
		}
	}
	s.close()
	fmt.Printf("%d scenarios in %.0f s, %d failed, %d skipped\n", ran, time.Since(begin).Seconds(), failed, skipped)
	if failed > 0 && ctx.Err() == nil || keep {
		fmt.Println("data and logs:", dir)
	} else if err := os.RemoveAll(dir); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case failed > 0:
		return errors.New("not all of it survives")
	case ran == 0:
		return errors.New("no scenario has such a name")
	}
	return nil
}

// cluster makes one that ends with the stage.
func (s *stage) cluster(size int, settings ...string) (*cluster, error) {
	s.made++
	c, err := newCluster(s.bin, filepath.Join(s.dir, fmt.Sprintf("cluster-%d", s.made)), size, settings...)
	if err == nil {
		s.open = append(s.open, c)
	}
	return c, err
}

// trio is the cluster of three that stays, with something in it.
func (s *stage) trio(ctx context.Context) (*cluster, *ledger, error) {
	if s.c != nil {
		return s.c, s.l, nil
	}
	c, err := s.cluster(3, "--raft-snapshot-entries=400", "--raft-snapshot-every=1s")
	if err != nil {
		return nil, nil, err
	}
	l := newLedger()
	if err := c.startAll(ctx); err != nil {
		return nil, nil, err
	}
	if err := prepare(ctx, c, l); err != nil {
		return nil, nil, err
	}
	if err := s.fill(ctx, c, l, 500); err != nil {
		return nil, nil, err
	}
	s.c, s.l = c, l
	return c, l, nil
}

// fill writes to a cluster that is whole.
func (s *stage) fill(ctx context.Context, c *cluster, l *ledger, writes int) error {
	from := s.next
	s.next += writes
	return fill(ctx, c, l, from, writes)
}

// of chooses a number for the short or the long form.
func (s *stage) of(short, long int) int {
	if s.full {
		return long
	}
	return short
}

// drop ends the cluster that stays.
func (s *stage) drop() {
	for _, c := range s.open {
		c.killAll()
	}
	s.open, s.c, s.l = nil, nil, nil
}

func (s *stage) close() {
	s.drop()
	for _, f := range s.undo {
		f()
	}
}

// hold is what is true of a cluster after each scenario: it is whole, it takes
// writes, and it has what clients were told.
func hold(ctx context.Context, c *cluster, l *ledger) error {
	if err := c.whole(ctx, 45*time.Second); err != nil {
		return err
	}
	if err := judge(ctx, c.nodes, l); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := canWrite(ctx, c, n, l, 5*time.Second); err != nil {
			return err
		}
	}
	if err := c.whole(ctx, 10*time.Second); err != nil {
		return err
	}
	return c.verify(ctx)
}
