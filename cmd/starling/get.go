package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/client"
)

func getCommand(p *process) *cobra.Command {
	r := &caller{remote: remote{p: p}}
	var only filter
	c := &cobra.Command{
		Use:   "get SERVICE",
		Short: "List the instances of a service that its clients are given",
		Long: `List the instances of a service as its clients are given them: without those that are
disabled or evicted, with the weights that operators have set. (starling instances
has those too, and tells why.) It asks once and subscribes to nothing. It is a client
like others, so the servers may as well be of Nacos. SERVICE may be GROUP@@NAME.

A list that no server confirms says so below the table; with --json it is in source
and asOf. There is one only with --cache-dir.
` + callerHelp,
		Example: `  starling get order
  starling get payment@@order --namespace prod --healthy
  starling get order --servers node-1,node-2 --json | jq -r '.instances[].ip'`,
		Args:              needsService,
		ValidArgsFunction: r.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := r.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			ctx, stop := p.untilStopped(c.Context())
			defer stop()
			s, err := r.once(ctx, cl, args[0], &only)
			if err != nil {
				return unanswered(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, r.listOf(s)))
			}
			return failed(r.writeSnapshot(p.stdout, s, time.Now()))
		},
	}
	r.flags(c)
	only.flags(c)
	r.cacheFlag(c)
	noFiles(c)
	return c
}

// once reads a list.
func (r *caller) once(ctx context.Context, cl *client.Client, service string, only *filter) (client.Snapshot, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	opts := only.options(r.group)
	if r.cacheDir == "off" {
		opts = append(opts, client.NoSubscribe())
	}
	return cl.Snapshot(ctx, service, opts...)
}

// writeSnapshot has the columns of starling instances that a client knows.
func (r *caller) writeSnapshot(w io.Writer, s client.Snapshot, now time.Time) error {
	about := r.serviceOf(s.Service)
	if len(s.Instances) == 0 {
		if _, err := fmt.Fprintf(w, "Clients of service %s in group %s, namespace %s are given no instance.\nstarling instances %s tells whether there are others.\n",
			safe(about.Name), safe(about.Group), safe(about.Namespace), safe(about.Name)); err != nil {
			return err
		}
	} else {
		t := newTable(w)
		t.row("INSTANCE", "CLUSTER", "STATE", "WEIGHT", "METADATA")
		for k := range s.Instances {
			t.row(cellsOf(&s.Instances[k])...)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return writeWorth(w, s, now)
}

func cellsOf(i *client.Instance) []string {
	return []string{addressOf(i), i.Cluster, seenAs(i), number(i.Weight), clipped(pairs(i.Metadata), 60)}
}

// writeWorth writes what is to be said of a list as a whole.
func writeWorth(w io.Writer, s client.Snapshot, now time.Time) error {
	if s.Protected {
		if _, err := fmt.Fprintln(w, "So few of the instances are healthy that clients are given all as healthy (protection threshold)."); err != nil {
			return err
		}
	}
	if text := worth(s, now); text != "" {
		_, err := fmt.Fprintln(w, text)
		return err
	}
	return nil
}
