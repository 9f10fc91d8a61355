package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/client"
)

// goneFor is how long what has gone stays on the terminal.
const goneFor = 30 * time.Second

func watchCommand(p *process) *cobra.Command {
	r := &caller{remote: remote{p: p}}
	var only filter
	pattern := ""
	c := &cobra.Command{
		Use:   "watch SERVICE | watch --service-pattern PATTERN",
		Short: "Follow a service as its clients are told of it, until Ctrl-C",
		Long: `Follow a service as its clients are told of it, until Ctrl-C: it subscribes as an
application does, and goes to another one of --servers when its node fails. On a
terminal it shows a table that is always what clients have now; elsewhere it prints a
line for each instance that is added (+), removed (-) or modified (~), those that there
are first. With --json it prints a line for each event, with what has changed and the
list as it is then. SERVICE may be GROUP@@NAME.

With --service-pattern it follows which services there are whose name matches: a name
with a star at its beginning, its end, or both; --group may have stars too. A service
is there while it has instances. Nacos can do that from version 3.0 on.

What happens to the connection is told on stderr, or above the table.
` + callerHelp,
		Example: `  starling watch order
  starling watch payment@@order --namespace prod --healthy
  starling watch order --servers node-1,node-2,node-3 --json | jq '.instances | length'
  starling watch --service-pattern 'pay*' --group '*'`,
		Args: func(c *cobra.Command, args []string) error {
			if pattern == "" {
				return needsService(c, args)
			}
			if len(args) > 0 {
				return errors.New("--service-pattern is instead of SERVICE")
			}
			for _, name := range []string{"healthy", "cluster", "cache-dir"} {
				if c.Flags().Changed(name) {
					return fmt.Errorf("--service-pattern follows services: --%s is of their instances", name)
				}
			}
			return nil
		},
		ValidArgsFunction: r.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			said := newNews()
			cl, err := r.connect(client.WithMetrics(said))
			if err != nil {
				return err
			}
			defer cl.Close()
			ctx, stop := p.untilStopped(c.Context())
			defer stop()
			if pattern != "" {
				v := &patternView{r: r, pattern: pattern, since: map[client.ServiceID]time.Time{}, gone: map[client.ServiceID]time.Time{}}
				return follow(ctx, r, cl, said, v)
			}
			v := &serviceView{r: r, service: args[0], only: &only, changes: map[string]change{}, opts: only.options(r.group)}
			if r.cacheDir != "off" {
				v.opts = append(v.opts, client.StaleOK(0))
			}
			return follow(ctx, r, cl, said, v)
		},
	}
	r.flags(c)
	c.Flags().StringVar(&pattern, "service-pattern", "", "follow which services there are whose name matches, as 'pay*'")
	only.flags(c)
	r.cacheFlag(c)
	noFiles(c)
	return c
}

// A view is what follow shows of events of one kind.
type view[E any] interface {
	// watch begins. The result tells one event after the other.
	watch(ctx context.Context, cl *client.Client) (next func(context.Context) (E, error), err error)
	// take remembers an event for the table.
	take(e E, now time.Time)
	// lines are for whoever reads what changes, one for each change.
	lines(w io.Writer, e E, now time.Time) error
	json(e E, now time.Time) any
	// table is the newest event, in place.
	table(w io.Writer, now time.Time) error
	name() string
}

// follow shows events until the process is told to stop, which is a success. The
// first answer must come in time; what fails after that is told of, and may pass.
func follow[E any](ctx context.Context, r *caller, cl *client.Client, said news, v view[E]) error {
	began, cancel := r.within(ctx)
	defer cancel()
	if r.cacheDir == "off" || r.cacheDir == "" {
		if err := cl.WaitReady(began); err != nil {
			return unlessStopped(ctx, err)
		}
	}
	next, err := v.watch(ctx, cl)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	type answer struct {
		event E
		err   error
	}
	answers := make(chan answer)
	go func() {
		for first := true; ; first = false {
			waiting := ctx
			if first {
				waiting = began
			}
			e, err := next(waiting)
			select {
			case answers <- answer{e, err}:
			case <-ctx.Done():
				return
			}
			if errors.Is(err, client.ErrClosed) {
				return
			}
		}
	}()

	out := r.p.stdout
	screen, redraws := out.(*os.File)
	redraws = redraws && !r.json && isTerminal(screen)
	var clock <-chan time.Time
	if redraws {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		clock = t.C
	}
	link := linkView{since: time.Now()}
	trouble := "" // of the watch, until the next event
	for shown := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-clock:
		case a := <-answers:
			now := time.Now()
			switch {
			case ctx.Err() != nil:
				return nil
			case a.err != nil && !shown:
				return unanswered(a.err)
			case errors.Is(a.err, client.ErrClosed):
				return unanswered(a.err)
			case a.err != nil:
				trouble = safe(a.err.Error())
				if !redraws {
					fmt.Fprintf(r.p.stderr, "%s  %s\n", now.Format("15:04:05.000"), trouble)
				}
			default:
				shown, trouble = true, ""
				v.take(a.event, now)
				if r.json {
					err = writeJSONLine(out, v.json(a.event, now))
				} else if !redraws {
					err = v.lines(out, a.event, now)
				}
				if err != nil {
					return failed(err)
				}
			}
		case n := <-said.c:
			// Those of the time before the first event are no news.
			if text, changed := link.take(n, time.Now()); changed && shown && !redraws {
				if err := line(r.p.stderr, time.Now(), text); err != nil {
					return failed(err)
				}
			}
		}
		if !redraws || !shown {
			continue
		}
		now := time.Now()
		var text bytes.Buffer
		if trouble != "" {
			fmt.Fprintln(&text, trouble)
		}
		if err := v.table(&text, now); err != nil {
			return failed(err)
		}
		rows, columns := sizeOf(screen)
		head := fmt.Sprintf("%s  %s  %s  Ctrl-C ends", now.Format(time.TimeOnly), safe(v.name()), link.text(cl, now))
		if _, err := out.Write(frame(text.String(), head, rows, columns)); err != nil {
			return failed(err)
		}
	}
}

// unlessStopped: who stops the command has not seen it fail.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return unanswered(err)
}

// A linkView is what there is to say of the connection.
type linkView struct {
	ever  bool // it has been connected
	lost  bool
	since time.Time
	from  string
}

func (l *linkView) take(r report, now time.Time) (text string, changed bool) {
	switch {
	case r.request != "":
	case r.state == client.Ready:
		was := l.lost
		l.ever, l.lost = true, false
		return r.server + "  connected", was
	case !l.lost:
		l.lost, l.since, l.from = true, now, r.server
		if !l.ever {
			return "no connection to any server yet; trying again", true
		}
		return r.server + "  connection lost", true
	case r.state == client.Degraded:
		return "still no connection to any server; trying again", true
	}
	return "", false
}

func (l *linkView) text(cl *client.Client, now time.Time) string {
	if l.lost && !l.ever {
		return "NOT CONNECTED for " + span(now.Sub(l.since)) + "."
	}
	if l.lost {
		return "NOT CONNECTED for " + span(now.Sub(l.since)) + ", as " + safe(l.from) + " told it last."
	}
	return "at " + safe(cl.Server()) + "."
}

// A serviceView is of the instances of one service.
type serviceView struct {
	r       *caller
	service string
	only    *filter
	opts    []client.QueryOption
	last    client.Event
	changes map[string]change // by address and cluster
}

// A change is the newest of an instance.
type change struct {
	what string // added, modified or gone
	at   time.Time
	was  client.Instance
}

func (v *serviceView) watch(ctx context.Context, cl *client.Client) (func(context.Context) (client.Event, error), error) {
	w, err := cl.Watch(ctx, v.service, v.opts...)
	if err != nil {
		return nil, err
	}
	return w.Next, nil
}

func (v *serviceView) name() string { return v.last.Snapshot.Service.String() }

func keyOf(i *client.Instance) string { return addressOf(i) + " " + i.Cluster }

func (v *serviceView) take(e client.Event, now time.Time) {
	v.last = e
	note := func(what string, list []client.Instance) {
		for _, i := range list {
			v.changes[keyOf(&i)] = change{what, now, i}
		}
	}
	if !e.First {
		note("added", e.Added)
	}
	note("modified", e.Modified)
	note("gone", e.Removed)
	for k, c := range v.changes {
		if c.what == "gone" && now.Sub(c.at) > goneFor {
			delete(v.changes, k)
		}
	}
}

func (v *serviceView) lines(w io.Writer, e client.Event, now time.Time) error {
	if e.First && len(e.Added) == 0 {
		if err := line(w, now, "= "+e.Snapshot.Service.String()+" has no instance"); err != nil {
			return err
		}
	}
	for _, changed := range []struct {
		sign string
		list []client.Instance
	}{{"+", e.Added}, {"-", e.Removed}, {"~", e.Modified}} {
		for k := range changed.list {
			i := &changed.list[k]
			words := []string{changed.sign + " " + addressOf(i), i.Cluster, seenAs(i), "weight " + number(i.Weight)}
			if len(i.Metadata) > 0 {
				words = append(words, pairs(i.Metadata))
			}
			if err := line(w, now, words...); err != nil {
				return err
			}
		}
	}
	if text := worth(e.Snapshot, now); text != "" {
		return line(w, now, "= "+text)
	}
	return nil
}

func (v *serviceView) json(e client.Event, now time.Time) any {
	return struct {
		At       time.Time      `json:"at"`
		First    bool           `json:"first"`
		Added    []instanceJSON `json:"added"`
		Removed  []instanceJSON `json:"removed"`
		Modified []instanceJSON `json:"modified"`
		listJSON
	}{now, e.First, instancesOf(e.Added), instancesOf(e.Removed), instancesOf(e.Modified), v.r.listOf(e.Snapshot)}
}

func (v *serviceView) table(w io.Writer, now time.Time) error {
	s := v.last.Snapshot
	t := newTable(w)
	t.row("INSTANCE", "CLUSTER", "STATE", "WEIGHT", "CHANGED", "METADATA")
	row := func(i *client.Instance, changed string) {
		cells := cellsOf(i)
		t.row(slices.Insert(cells, 4, changed)...)
	}
	for k := range s.Instances {
		i := &s.Instances[k]
		changed := ""
		if c, ok := v.changes[keyOf(i)]; ok {
			changed = c.what + " " + span(now.Sub(c.at).Truncate(time.Second))
		}
		row(i, changed)
	}
	var gone []change
	for _, c := range v.changes {
		if c.what == "gone" && now.Sub(c.at) <= goneFor {
			gone = append(gone, c)
		}
	}
	slices.SortFunc(gone, func(a, b change) int { return strings.Compare(keyOf(&a.was), keyOf(&b.was)) })
	for _, c := range gone {
		cells := cellsOf(&c.was)
		cells[2] = "GONE"
		t.row(slices.Insert(cells, 4, "gone "+span(now.Sub(c.at).Truncate(time.Second)))...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	usable := 0
	for _, i := range s.Instances {
		if i.Healthy && i.Enabled && i.Weight > 0 {
			usable++
		}
	}
	if _, err := fmt.Fprintf(w, "%s, %d to be used\n", count(len(s.Instances), "instance", "instances"), usable); err != nil {
		return err
	}
	return writeWorth(w, s, now)
}

// A patternView is of the services that match a pattern.
type patternView struct {
	r           *caller
	pattern     string
	last        client.ServiceEvent
	since, gone map[client.ServiceID]time.Time
}

func (v *patternView) watch(ctx context.Context, cl *client.Client) (func(context.Context) (client.ServiceEvent, error), error) {
	var opts []client.ServiceOption
	if v.r.group != "" {
		opts = append(opts, client.Group(v.r.group))
	}
	w, err := cl.WatchServices(ctx, v.pattern, opts...)
	if err != nil {
		return nil, err
	}
	return w.Next, nil
}

func (v *patternView) name() string { return "services " + v.pattern }

func (v *patternView) take(e client.ServiceEvent, now time.Time) {
	v.last = e
	for _, id := range e.Added {
		if delete(v.gone, id); !e.First {
			v.since[id] = now
		}
	}
	for _, id := range e.Removed {
		delete(v.since, id)
		v.gone[id] = now
	}
	for id, at := range v.gone {
		if now.Sub(at) > goneFor {
			delete(v.gone, id)
		}
	}
}

func (v *patternView) lines(w io.Writer, e client.ServiceEvent, now time.Time) error {
	if e.First && len(e.Added) == 0 {
		return line(w, now, "= no service matches "+v.pattern)
	}
	for _, id := range e.Added {
		if err := line(w, now, "+ "+id.String()); err != nil {
			return err
		}
	}
	for _, id := range e.Removed {
		if err := line(w, now, "- "+id.String()); err != nil {
			return err
		}
	}
	return nil
}

func (v *patternView) json(e client.ServiceEvent, now time.Time) any {
	of := func(list []client.ServiceID) []api.Service {
		out := make([]api.Service, 0, len(list))
		for _, id := range list {
			out = append(out, v.r.serviceOf(id))
		}
		return out
	}
	return struct {
		At       time.Time     `json:"at"`
		First    bool          `json:"first"`
		Added    []api.Service `json:"added"`
		Removed  []api.Service `json:"removed"`
		Services []api.Service `json:"services"`
	}{now, e.First, of(e.Added), of(e.Removed), of(e.Services)}
}

func (v *patternView) table(w io.Writer, now time.Time) error {
	t := newTable(w)
	t.row("SERVICE", "GROUP", "CHANGED")
	for _, id := range v.last.Services {
		changed := ""
		if at, ok := v.since[id]; ok {
			changed = "added " + span(now.Sub(at).Truncate(time.Second))
		}
		t.row(id.Name, id.Group, changed)
	}
	gone := slices.SortedFunc(func(yield func(client.ServiceID) bool) {
		for id, at := range v.gone {
			if now.Sub(at) <= goneFor && !yield(id) {
				return
			}
		}
	}, func(a, b client.ServiceID) int { return strings.Compare(a.String(), b.String()) })
	for _, id := range gone {
		t.row(id.Name, id.Group, "gone "+span(now.Sub(v.gone[id]).Truncate(time.Second)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, count(len(v.last.Services), "service", "services"))
	return err
}
