package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
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
			return failed(show(c.Context(), r, client.Members, writeMembers))
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	c.AddCommand(removeMemberCommand(p))
	return c
}

func removeMemberCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "remove NAME|ID",
		Short: "Take a node that is gone for good out of the log of the cluster",
		Long: `Take a node that will not come back out of the log of the cluster, so that it counts
for no majority any more. A voter that crashed is replaced without it as soon as
another node can be one, and a node that left on purpose goes by itself; this is for
what has nobody to replace it, and for whoever does not want to wait.

A node that is alive is refused: stop it first (SIGTERM). One that was removed and is
started all the same is taken in again, as a new one. NAME is as starling members shows
it, if no other has it; ID may be its beginning, 8 digits at least.

It needs a quorum. If that is lost: starling recover --help.`,
		Example: `  starling members remove node-c
  starling members remove c3333333 --server 10.0.0.1`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("needs one NAME or ID of a member")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			m, err := ask(c.Context(), client.Members)
			if err != nil {
				return failed(err)
			}
			log, err := ask(c.Context(), client.Raft)
			if err != nil {
				return failed(err)
			}
			id, err := memberOf(args[0], m, log)
			if err != nil {
				return failed(err)
			}
			removed, err := ask(c.Context(), func(ctx context.Context) (*api.Removed, error) { return removeMember(ctx, client, id) })
			if err != nil {
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, removed))
			}
			fmt.Fprintf(p.stdout, "%s is out of the log: %d of %s alive, a write needs %d.\n", safe(cmp.Or(removed.Name, short(removed.ID))),
				removed.AliveVoters, count(removed.Voters, "voter is", "voters are"), removed.Quorum)
			return nil
		},
	}
	r.flags(c, false, false)
	noFiles(c)
	return c
}

// A leader that was stopped a moment ago is to be removed by the next one, which
// may take some seconds to be elected.
const (
	leaderWithin = 5 * time.Second
	leaderPoll   = 250 * time.Millisecond
)

// removeMember takes a member out of the log, and waits for somebody who leads:
// nobody may, or the one that is thought to may be the one that was stopped.
func removeMember(ctx context.Context, client *api.Client, id string) (*api.Removed, error) {
	end := time.Now().Add(leaderWithin)
	for {
		removed, err := client.RemoveMember(ctx, id)
		if code := api.CodeOf(err); code != api.CodeNoLeader && code != api.CodeCannotReach || time.Until(end) < leaderPoll {
			return removed, err
		}
		select {
		case <-time.After(leaderPoll):
		case <-ctx.Done():
			return removed, err
		}
	}
}

// memberOf finds the id of a member, or of a node that only the log still
// knows, by its name, its id or the beginning of that.
func memberOf(name string, m *api.Members, log *api.Raft) (string, error) {
	const enough = 8 // digits of an id that are no accident
	names := map[string]string{}
	for _, s := range log.Servers {
		names[s.ID] = s.Name
	}
	for _, n := range m.Members {
		names[n.ID] = n.Name
	}
	if _, ok := names[name]; ok {
		return name, nil
	}
	var found []string
	for id, n := range names {
		if n == name || len(name) >= enough && strings.HasPrefix(id, name) {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no member is called %s; starling members and starling raft show them", name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("several members are called %s: name one by its id, %s", name, strings.Join(found, " or "))
}

func writeMembers(w io.Writer, m *api.Members) error {
	t := newTable(w)
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
			fmt.Fprintf(w, "The clock of %s is %s off: check its time synchronization. A node that is a day off is refused.\n", safe(n.Name), span(offset.Abs()))
		}
	}
	return nil
}
