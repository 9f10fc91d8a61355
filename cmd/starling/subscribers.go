package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

// behindLate is how long a client may take for what it was sent before that is
// worth a mark. Most need milliseconds.
const behindLate = time.Second

func subscribersCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "subscribers SERVICE",
		Short: "List who is told of the changes of a service, and who is behind",
		Long: `List the clients that subscribe to a service, on all nodes: who is told when its
instances change. ACKED is the time (UTC) of the newest list that a client has
acknowledged. BEHIND is for how long it has not acknowledged something newer: it does
not read, does not answer, or has refused it. Such clients stand first, and from a
second on they are marked (!): their process hangs, or is overloaded. One that does
not answer for a minute is disconnected, so that it comes back and gets the whole list.

SERVICE may be GROUP@@NAME. Clients over HTTP (1.x) ask again and again, they are not
subscribers. Nodes that did not answer are named above the table.`,
		Example: `  starling subscribers order
  starling subscribers order --namespace prod --watch
  starling subscribers order --json | jq '.subscribers[] | select(.behindMillis > 5000)'`,
		Args:              r.watched(needsService),
		ValidArgsFunction: r.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return failed(show(c.Context(), r, func(ctx context.Context) (*api.Subscribers, error) {
				return client.Subscribers(ctx, r.service(args[0]))
			}, writeSubscribers))
		},
	}
	r.flags(c, false, true)
	r.watchFlag(c)
	noFiles(c)
	return c
}

// writeSubscribers begins with what is to be seen where the table is too long.
func writeSubscribers(w io.Writer, s *api.Subscribers) error {
	names := map[string]string{}
	for _, n := range s.Nodes {
		names[n.Node] = n.Name
	}
	called := newNodeNames(names)
	behind := 0
	var longest time.Duration
	for _, c := range s.Subscribers {
		if d := time.Duration(c.BehindMillis) * time.Millisecond; d >= behindLate {
			behind++
			longest = max(longest, d)
		}
	}
	line := fmt.Sprintf("%s of %s in group %s, namespace %s", count(len(s.Subscribers), "subscriber", "subscribers"), s.Name, s.Group, s.Namespace)
	if behind > 0 {
		line += fmt.Sprintf("; %d behind, the longest for %s", behind, span(longest))
	}
	lines := []string{line + "."}
	for _, n := range s.Nodes {
		switch {
		case n.Error != "":
			lines = append(lines, called.of(n.Node)+" did not answer, so its subscribers are missing: "+n.Error)
		case n.Truncated:
			lines = append(lines, called.of(n.Node)+" has more subscribers than an answer has room for.")
		}
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, safe(l)); err != nil {
			return err
		}
	}
	if len(s.Subscribers) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	t := newTable(w)
	t.row("BEHIND", "ACKED", "IP", "AGENT", "APP", "CLUSTERS", "NODE", "CLIENT")
	for _, c := range s.Subscribers {
		late, acked := "-", "nothing"
		if d := time.Duration(c.BehindMillis) * time.Millisecond; d > 0 {
			late = span(d)
			if d >= behindLate {
				late += " (!)"
			}
		}
		if !c.Acked.IsZero() {
			acked = c.Acked.UTC().Format("2006-01-02 15:04:05.000")
		}
		t.row(late, acked, c.IP, c.Agent, c.App, cmp.Or(c.Clusters, "all"), called.of(c.Node), c.Client)
	}
	return t.Flush()
}
