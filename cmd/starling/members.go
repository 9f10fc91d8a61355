package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

func membersCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "members",
		Short: "List the nodes of the cluster, as one of them sees them",
		Long: `List the nodes of the cluster, as one of them sees them.

A member is alive; silent: it does not answer, but nothing says that its process
is gone (paused, cut off, powered off); refused: its ports refuse, the process is
gone; or left: it went on purpose. The time beside the state is how long it has
lasted. Not ready is a node that takes no clients, because it is still catching
up, draining or stopping. The clock is how far it is from that of the node that
was asked (marked *); more than a second is marked too.`,
		Example: `  starling members
  starling members --server 10.0.0.2
  starling members --json | jq -r '.members[] | select(.state != "alive") | .name'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			m, err := ask(c.Context(), client.Members)
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, m))
			}
			return failed(writeMembers(p, m))
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	return c
}

func writeMembers(p *process, m *api.Members) error {
	t := newTable(p.stdout)
	t.row("NAME", "STATE", "READY", "ADDRESS", "VERSION", "CLOCK", "ID")
	for _, n := range m.Members {
		name := n.Name
		if n.Self {
			name += " *"
		}
		ready := "no"
		switch {
		case n.State != api.StateAlive:
			ready = "-"
		case n.Draining:
			ready = "draining"
		case n.Ready:
			ready = "yes"
		}
		clock := "-"
		if !n.Self && n.State == api.StateAlive {
			clock = fmt.Sprintf("%+dms", n.ClockOffsetMillis)
			if n.ClockOff {
				clock += " (!)"
			}
		}
		t.row(name, n.State+" "+ago(m.At, n.Since), ready, api.JoinAddress(n.Host, n.Ports.HTTP), n.Version, clock, n.ID)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range m.Members {
		if n.ClockOff {
			offset := time.Duration(n.ClockOffsetMillis) * time.Millisecond
			fmt.Fprintf(p.stdout, "The clock of %s is %s off: check its time synchronization. A node that is a day off is refused.\n", safe(n.Name), span(offset.Abs()))
		}
	}
	return nil
}
