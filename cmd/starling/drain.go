package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

const (
	drainPoll     = 500 * time.Millisecond
	drainSilence  = 5 * time.Second // a node may be deaf for so long while it drains
	drainPatience = time.Minute     // beyond twice what the plan says
)

func drainCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	dry := false
	c := &cobra.Command{
		Use:   "drain",
		Short: "Move the clients of a node to the others, so that it can be stopped",
		Long: `Move all clients of the node of --server to the other nodes, slowly enough that
nobody notices: the node takes no new ones, asks those that it has to connect to a
named other node, and waits until the others have everything it had. Nothing that is
registered disappears meanwhile. Then stop the node.

Stopping a node with SIGTERM drains it in the same way first; this command is for
whoever wants to see it happen, or to see beforehand what would. Interrupting it ends
only the watching.

Exit status 0: the node is empty. 1: it is not, and why.`,
		Example: `  starling drain --server 10.0.0.2 --dry-run   # who would go where, and how long it takes
  starling drain --server 10.0.0.2
  starling drain --server 10.0.0.2 --json      # a line of JSON for each step`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			d, err := ask(c.Context(), func(ctx context.Context) (*api.Drain, error) { return client.StartDrain(ctx, dry) })
			if err != nil {
				return failed(err)
			}
			if !r.json {
				writePlan(p, d)
			}
			if dry {
				if r.json {
					return failed(writeJSON(p.stdout, d))
				}
				return nil
			}
			say := func(d *api.Drain) { fmt.Fprintln(p.stdout, drainLine(d)) }
			if r.json {
				say = func(d *api.Drain) {
					b, err := json.Marshal(d)
					if err == nil {
						fmt.Fprintf(p.stdout, "%s\n", safeJSON(b))
					}
				}
			}
			return failed(watchDrain(c.Context(), d, func(ctx context.Context) (*api.Drain, error) { return ask(ctx, client.Drain) }, say))
		},
	}
	r.flags(c, false, false)
	c.Flags().BoolVar(&dry, "dry-run", false, "only print what would be done")
	noFiles(c)
	return c
}

// writePlan prints whom a drain moves where.
func writePlan(p *process, d *api.Drain) {
	name := safe(d.Name)
	if name == "" {
		name = short(d.Node)
	}
	fmt.Fprintf(p.stdout, "%s has %s with %s.\n", name, count(d.Plan.Clients, "client", "clients"), count(d.Plan.Instances, "instance", "instances"))
	if len(d.Plan.Targets) == 0 {
		if d.Plan.Clients > 0 {
			fmt.Fprintln(p.stdout, "No other node is ready, so nobody is moved: what they have registered goes when the node stops.")
		}
		return
	}
	for _, t := range d.Plan.Targets {
		target := safe(t.Name)
		if target == "" {
			target = short(t.Node)
		}
		fmt.Fprintf(p.stdout, "  %s to %s\n", count(t.Clients, "client", "clients"), target)
	}
	fmt.Fprintf(p.stdout, "It takes about %s.\n", span(time.Duration(d.Plan.Seconds*float64(time.Second))))
}

// drainLine tells in a line how far it is.
func drainLine(d *api.Drain) string {
	left := fmt.Sprintf("%s with %s left", count(d.ClientsLeft, "client", "clients"), count(d.InstancesLeft, "instance", "instances"))
	switch d.State {
	case api.DrainDone:
		return "drained: the node may be stopped"
	case api.DrainFailed:
		return "not drained, " + left
	}
	if d.Step == "" {
		return "draining: " + left
	}
	return safe(d.Step) + ": " + left
}

// watchDrain follows a drain that was begun and tells each step, until it is
// over. The node may stop answering when it has nobody left: then it was
// stopped by somebody else, and that was to come anyway.
func watchDrain(ctx context.Context, d *api.Drain, progress func(context.Context) (*api.Drain, error), say func(*api.Drain)) error {
	start := time.Now()
	patience := drainPatience + time.Duration(2*d.Plan.Seconds*float64(time.Second))
	heard := start
	said := ""
	for {
		if line := drainLine(d); line != said {
			say(d)
			said = line
		}
		switch d.State {
		case api.DrainDone:
			return nil
		case api.DrainFailed:
			return errors.New("the node is not drained: " + d.Error)
		case api.DrainNone, api.DrainPlanned:
			return errors.New("the node does not drain any more: was it started anew?")
		}
		if time.Since(start) > patience {
			return fmt.Errorf("it is still not over after %s; starling cluster --server shows whether the other nodes can be reached", span(time.Since(start)))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(drainPoll):
		}
		next, err := progress(ctx)
		switch {
		case err == nil:
			d, heard = next, time.Now()
		case api.CodeOf(err) == api.CodeCannotReach && d.ClientsLeft == 0:
			last := *d
			last.Step = "the node has stopped"
			say(&last)
			return nil
		case time.Since(heard) >= drainSilence || api.CodeOf(err) != api.CodeCannotReach:
			return fmt.Errorf("the node did not end to drain before it stopped answering: %w", err)
		}
	}
}
