package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

// quiet is how long a service must have been unchanged on every node before
// their answers must be equal: far more than replication takes.
const quiet = 2 * time.Second

// verifyPause is at least between two questions.
const verifyPause = 500 * time.Millisecond

// maxDifferences bounds the table; --json has them all.
const maxDifferences = 50

func verifyCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	var within time.Duration
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that all nodes show the same",
		Long: `Ask all nodes for a sum over what they show of each service (addresses, weights,
health, metadata) and compare.

A service that has not changed for 2 seconds on any node must be the same on all of
them. One that is changing is asked for again, until it has been quiet and equal, or
--within is over. What differs, and what never was quiet, is listed.

The tables of the log (persistent instances, settings, accounts) must be the same on
nodes that have carried out the same entries of it; one that is behind is asked again.

The members that --server knows are asked, through it or, if that fails, at their own
addresses; those that are not alive are named and left out. With --servers each of
these is asked itself, and must answer.

Exit status 0: all are equal. 1: something differs or kept changing, or a node
could not be asked.`,
		Example: `  starling verify
  starling verify --within 30s --server 10.0.0.1
  starling verify --servers 10.0.0.1,10.0.0.2,10.0.0.3
  starling verify --namespace prod --json | jq '.differing[].service'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if within < 0 {
				return errors.New("--within must not be negative")
			}
			v, questions, err := r.hashQuestions(c.Context())
			if err != nil {
				return err
			}
			if err := v.run(c.Context(), questions, within, r.keeps); err != nil {
				if len(r.servers) > 0 { // --server is no advice
					return errFailed{errors.New(lines(err))}
				}
				return failed(err)
			}
			if r.json {
				if err := writeJSON(p.stdout, v); err != nil {
					return failed(err)
				}
			} else if err := v.write(p); err != nil {
				return failed(err)
			}
			return failed(v.verdict())
		},
	}
	r.flags(c, true, true)
	c.Flags().Lookup("namespace").Usage = "only services of this namespace (default all)"
	c.Flags().Lookup("group").Usage = "only services of this group (default all)"
	c.Flags().DurationVar(&within, "within", 10*time.Second, "time in which services that change may become quiet")
	noFiles(c)
	return c
}

// stateNow is what a node thinks of a member; "": it does not say.
func stateNow(ctx context.Context, c *api.Client, id string) string {
	m, err := ask(ctx, c.Members)
	if err != nil {
		return ""
	}
	for _, member := range m.Members {
		if member.ID == id {
			return member.State
		}
	}
	return ""
}

func (r *remote) keeps(s api.Service) bool {
	return (r.namespace == "" || s.Namespace == r.namespace) && (r.group == "" || s.Group == r.group)
}

// A hashQuestion asks one node for its hashes.
type hashQuestion func(context.Context) (*api.Hashes, error)

// hashQuestions are of --servers, or of all members that --server takes for
// alive.
func (r *remote) hashQuestions(ctx context.Context) (*verification, []hashQuestion, error) {
	clients, err := r.clients()
	if err != nil {
		return nil, nil, err
	}
	v := &verification{Nodes: []verifiedNode{}, NotCompared: []leftOut{}, Differing: []difference{}, Changing: []difference{}, Log: []logAt{}}
	var questions []hashQuestion
	// direct is asked if c cannot pass on the answer of that node: there is
	// no way between the two, or it is too large for one message. May be nil.
	add := func(c *api.Client, id, name string, direct *api.Client) {
		questions = append(questions, func(ctx context.Context) (*api.Hashes, error) {
			// Longer than others: there may be a million services, and the
			// server itself gives up after 20 s.
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			h, err := c.Hashes(ctx, id)
			if err != nil && direct != nil {
				if state := stateNow(ctx, c, id); state != "" && state != api.StateAlive {
					return nil, fmt.Errorf("%s has become %s meanwhile; without it: starling verify once more", name, state)
				}
				if own, e := direct.Hashes(ctx, ""); e == nil && own.Node == id {
					return own, nil
				}
			}
			if err != nil && name != c.Server() { // which says so itself
				err = fmt.Errorf("%s: %w", name, err)
			}
			return h, err
		})
	}
	if len(clients) > 1 {
		for _, c := range clients {
			add(c, "", c.Server(), nil)
		}
		return v, questions, nil
	}
	var client *api.Client
	if len(clients) == 1 {
		client = clients[0]
	} else if client, err = r.client(); err != nil {
		return nil, nil, err
	}
	m, err := ask(ctx, client.Members)
	if err != nil {
		return nil, nil, failed(err)
	}
	for _, member := range m.Members {
		switch {
		case member.State == api.StateAlive:
			// By id also for the node itself: behind --server may be several.
			var direct *api.Client
			if !member.Self {
				direct, _ = api.NewClient(api.JoinAddress(member.Host, member.Ports.HTTP)) // nil: no address
			}
			add(client, member.ID, member.Name, direct)
		case member.State != api.StateLeft:
			v.NotCompared = append(v.NotCompared, leftOut{member.ID, member.Name, member.State})
		}
	}
	return v, questions, nil
}

// A verification is the outcome of a comparison.
type verification struct {
	Equal    bool           `json:"equal"` // everything was compared and nothing differs
	Nodes    []verifiedNode `json:"nodes"`
	Services int            `json:"services"` // that were compared or kept changing
	// NotCompared are members that are not alive.
	NotCompared []leftOut    `json:"notCompared"`
	Differing   []difference `json:"differing"`
	Changing    []difference `json:"changing"` // never quiet on all nodes until the time was over; the last answers
	// Log is how far each node is with the log, of those that say; the last
	// answers.
	Log []logAt `json:"log"`

	logsDiffer, logsEqual bool // neither: they never were at the same entry
}

// A logAt is how far a node was with the log, and its tables then.
type logAt struct {
	Node    string `json:"node"`
	Applied uint64 `json:"applied"`
	Digest  string `json:"digest"`
}

// logsOf are those of the nodes that say.
func logsOf(answers []*api.Hashes) []logAt {
	logs := []logAt{}
	for _, h := range answers {
		if h.RaftDigest != "" {
			logs = append(logs, logAt{h.Node, h.RaftApplied, h.RaftDigest})
		}
	}
	return logs
}

// compareLogs tells whether two nodes have different tables at the same entry,
// and whether all are at the same.
func compareLogs(logs []logAt) (differ, together bool) {
	together = true
	for i, a := range logs {
		for _, b := range logs[:i] {
			differ = differ || a.Applied == b.Applied && a.Digest != b.Digest
			together = together && a.Applied == b.Applied
		}
	}
	return differ, together
}

type verifiedNode struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

type leftOut struct {
	Node  string `json:"node"`
	Name  string `json:"name"`
	State string `json:"state"`
}

// A difference is a service and what each node shows of it, in the order of the
// nodes.
type difference struct {
	api.Service
	Shown []shown `json:"shown"`
}

type shown struct {
	Node            string `json:"node"`
	Instances       int    `json:"instances"`
	Hash            string `json:"hash,omitempty"` // absent: the node shows nothing
	UnchangedMillis int64  `json:"unchangedMillis"`
}

// run asks and compares until nothing is open any more or the time is over.
func (v *verification) run(ctx context.Context, questions []hashQuestion, within time.Duration, keep func(api.Service) bool) error {
	start := time.Now()
	// When it was first seen that a node has nothing of a service. Nobody
	// else tells for how long.
	missing := map[string]map[api.Service]time.Time{}
	var open map[api.Service]bool // nil: all that there are
	for {
		asked := time.Now()
		answers, err := askAll(ctx, questions)
		if err != nil {
			return err
		}
		took := time.Since(asked)
		if open == nil {
			if err := v.meet(answers); err != nil {
				return err
			}
			if len(answers) < 2 {
				v.Equal = true
				return nil
			}
		} else if !slices.EqualFunc(answers, v.Nodes, func(h *api.Hashes, n verifiedNode) bool { return h.Node == n.Node }) {
			return errors.New("other nodes answer now than before: is there something between that spreads the requests?")
		}

		type row struct {
			shown    []shown
			anywhere bool
		}
		rows := map[api.Service]*row{}
		for i, h := range answers {
			for _, s := range h.Services {
				if open != nil && !open[s.Service] || !keep(s.Service) {
					continue
				}
				at := rows[s.Service]
				if at == nil {
					at = &row{shown: make([]shown, len(answers))}
					for j := range at.shown {
						at.shown[j] = shown{Node: answers[j].Node, UnchangedMillis: -1}
					}
					rows[s.Service] = at
				}
				// A service without instances looks like none: nodes clean
				// up at different times.
				at.shown[i].UnchangedMillis = s.UnchangedMillis
				if s.Instances > 0 {
					at.shown[i].Instances, at.shown[i].Hash = s.Instances, s.Hash
					at.anywhere = true
				}
			}
		}
		v.Changing = v.Changing[:0]
		next := map[api.Service]bool{}
		for service, at := range rows {
			if !at.anywhere {
				continue
			}
			if open == nil {
				v.Services++
			}
			// The nodes did not answer at the same instant, but within the
			// time the question took.
			settled, equal := true, true
			for i := range at.shown {
				s := &at.shown[i]
				if s.UnchangedMillis < 0 { // nothing known of it there
					of := missing[s.Node]
					if of == nil {
						of = map[api.Service]time.Time{}
						missing[s.Node] = of
					}
					if of[service].IsZero() {
						of[service] = asked
					}
					s.UnchangedMillis = time.Since(of[service]).Milliseconds()
				} else {
					delete(missing[s.Node], service)
				}
				settled = settled && s.UnchangedMillis >= (quiet+took).Milliseconds()
				equal = equal && s.Hash == at.shown[0].Hash
			}
			switch d := (difference{service, at.shown}); {
			case !settled:
				next[service] = true
				v.Changing = append(v.Changing, d)
			case !equal:
				v.Differing = append(v.Differing, d)
			}
		}
		logsSettled := v.logsDiffer || v.logsEqual
		if !logsSettled {
			v.Log = logsOf(answers)
			differ, together := compareLogs(v.Log)
			v.logsDiffer, v.logsEqual = differ, together && !differ
			logsSettled = differ || together
		}
		left := within - time.Since(start)
		if open = next; len(open) == 0 && logsSettled || left <= 0 {
			break
		}
		// A cluster with much to tell is not asked all the time.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(left, max(verifyPause, took))):
		}
	}
	byName := func(a, b difference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name))
	}
	slices.SortFunc(v.Differing, byName)
	slices.SortFunc(v.Changing, byName)
	v.Equal = len(v.Differing) == 0 && len(v.Changing) == 0 && v.logsEqual
	return nil
}

// meet checks that the answers can be compared.
func (v *verification) meet(answers []*api.Hashes) error {
	var cluster *api.Hashes
	for i, h := range answers {
		for _, o := range answers[:i] {
			if o.Node == h.Node {
				return fmt.Errorf("two of the addresses lead to one node, %s: there is nothing to compare", cmp.Or(h.Name, h.Node))
			}
		}
		if h.Cluster != "" {
			if cluster != nil && cluster.Cluster != h.Cluster {
				return fmt.Errorf("%s and %s are of different clusters", cmp.Or(cluster.Name, cluster.Node), cmp.Or(h.Name, h.Node))
			}
			cluster = h
		}
		v.Nodes = append(v.Nodes, verifiedNode{h.Node, h.Name})
	}
	return nil
}

// askAll asks all at once; all must answer.
func askAll(ctx context.Context, questions []hashQuestion) ([]*api.Hashes, error) {
	answers := make([]*api.Hashes, len(questions))
	errs := make([]error, len(questions))
	var wg sync.WaitGroup
	for i, q := range questions {
		wg.Go(func() { answers[i], errs[i] = q(ctx) })
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// verdict is nil if all nodes show the same.
func (v *verification) verdict() error {
	var errs []error
	if n := len(v.Differing); n > 0 {
		errs = append(errs, fmt.Errorf("%s shown differently by the nodes, of %d", count(n, "service is", "services are"), v.Services))
	}
	if n := len(v.Changing); n > 0 {
		errs = append(errs, fmt.Errorf("%s still changing and could not be compared; give them longer with --within", count(n, "service is", "services are")))
	}
	switch {
	case v.logsDiffer:
		errs = append(errs, errors.New("nodes have different tables at the same entry of the log: a bug or corruption, please report it"))
	case !v.Equal && !v.logsEqual:
		errs = append(errs, errors.New("the nodes were never at the same entry of the log and their tables could not be compared; give them longer with --within, or see starling raft"))
	}
	return errors.Join(errs...)
}

func (v *verification) write(p *process) error {
	w := p.stdout
	names := map[string]string{}
	for _, n := range v.Nodes {
		names[n.Node] = n.Name
	}
	called := newNodeNames(names)
	for _, o := range v.NotCompared {
		fmt.Fprintf(w, "%s is %s and was not asked.\n", safe(cmp.Or(o.Name, o.Node)), safe(o.State))
	}
	if v.Equal {
		switch len(v.Nodes) {
		case 0:
			fmt.Fprintln(w, "No node is alive.")
		case 1:
			there := "There is one node, %s: nothing to compare.\n"
			if len(v.NotCompared) > 0 {
				there = "Only %s could be asked: nothing to compare.\n"
			}
			fmt.Fprintf(w, there, safe(called.of(v.Nodes[0].Node)))
		default:
			fmt.Fprintf(w, "%s on %d nodes: all equal", count(v.Services, "service", "services"), len(v.Nodes))
			if len(v.Log) > 1 {
				fmt.Fprintf(w, ", and so are the tables of %d at entry %d of the log", len(v.Log), v.Log[0].Applied)
			}
			fmt.Fprintln(w, ".")
		}
		return nil
	}
	if !v.logsEqual {
		t := newTable(w)
		t.row("LOG OF", "APPLIED", "DIGEST")
		for _, l := range v.Log {
			t.row(called.of(l.Node), strconv.FormatUint(l.Applied, 10), l.Digest)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(v.Differing)+len(v.Changing) == 0 {
		return nil
	}
	t := newTable(w)
	head := []string{"", "NAMESPACE", "GROUP", "SERVICE"}
	for _, n := range v.Nodes {
		head = append(head, called.of(n.Node))
	}
	t.row(head...)
	rows := 0
	list := func(what string, all []difference) {
		for _, d := range all {
			if rows++; rows > maxDifferences {
				return
			}
			cells := []string{what, d.Namespace, d.Group, d.Name}
			for _, s := range d.Shown {
				if s.Hash == "" {
					cells = append(cells, "none")
				} else {
					cells = append(cells, strconv.Itoa(s.Instances)+" ("+short(s.Hash)+")")
				}
			}
			t.row(cells...)
		}
	}
	list("differs", v.Differing)
	list("changing", v.Changing)
	if err := t.Flush(); err != nil {
		return err
	}
	if more := len(v.Differing) + len(v.Changing) - maxDifferences; more > 0 {
		fmt.Fprintf(w, "… and %d more; --json lists all.\n", more)
	}
	fmt.Fprintln(w, "Per node: instances, and the beginning of the sum over them.")
	return nil
}
