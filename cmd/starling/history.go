package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

func historyCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "history SERVICE [INSTANCE]",
		Short: "Tell when and why instances of a service came, changed and went",
		Long: `Why did my instance vanish? Every node remembers the last changes of each service:
this puts together what all of them know, oldest first, one line for each change, with
the time (UTC), why it happened, the node to which the client was attached, and the
client (for gRPC clients its connection: time_address_port). Where something stayed,
only who stands behind it changed, or is about to: nobody saw anything.

SERVICE may be GROUP@@NAME. INSTANCE is IP:PORT. A node remembers the last 256 changes
of a service (setting history-per-service), and those of a service that is gone for a
day (history-keep). What was forgotten, and which nodes did not answer, is said below.`,
		Example: `  starling history order
  starling history order 10.0.0.7:8080
  starling history order --namespace prod --group payment
  starling history order --json | jq '.changes[] | select(.kind == "went")'`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: r.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			instance := ""
			if len(args) > 1 {
				instance = args[1]
				if _, _, err := net.SplitHostPort(instance); err != nil {
					return fmt.Errorf("INSTANCE: %q is not IP:PORT, as in 10.0.0.7:8080 or [fd00::7]:8080", instance)
				}
			}
			h, err := ask(c.Context(), func(ctx context.Context) (*api.History, error) {
				return client.History(ctx, r.service(args[0]), instance)
			})
			if err != nil {
				return failed(err)
			}
			if r.json {
				err = writeJSON(p.stdout, h)
			} else {
				err = writeHistory(p, h)
			}
			if err == nil {
				err = nothingKnown(h)
			}
			return failed(err)
		},
	}
	r.flags(c, false, true)
	noFiles(c)
	return c
}

// nothingKnown is the failure of a question without any answer, most often
// because of a wrong name.
func nothingKnown(h *api.History) error {
	if len(h.Changes) > 0 {
		return nil
	}
	of := "service " + h.Name
	if h.Instance != "" {
		of = "instance " + h.Instance + " of " + of
	}
	return fmt.Errorf("nothing is remembered of %s in group %s, namespace %s; are these right (--group, --namespace)?", of, h.Group, h.Namespace)
}

func writeHistory(p *process, h *api.History) error {
	names := map[string]string{}
	for _, n := range h.Nodes {
		names[n.Node] = n.Name
	}
	for _, c := range h.Changes {
		if c.Node != "" && names[c.Node] == "" {
			names[c.Node] = c.NodeName
		}
	}
	called := newNodeNames(names)
	t := newTable(p.stdout)
	causes := map[string]string{}
	for _, c := range h.Changes {
		at := api.JoinAddress(c.IP, c.Port)
		if c.Cluster != "DEFAULT" && c.Cluster != "" {
			at += " [" + c.Cluster + "]"
		}
		cells := []string{c.When.UTC().Format("2006-01-02 15:04:05.000"), at, c.Kind, c.Cause}
		if c.Node != "" {
			cells = append(cells, "on "+called.of(c.Node))
		} else {
			by := make([]string, len(c.SeenBy))
			for i, id := range c.SeenBy {
				by[i] = called.of(id)
			}
			cells = append(cells, "seen by "+strings.Join(by, ", "))
		}
		switch by, ok := strings.CutPrefix(c.Client, "operator "); {
		case ok:
			cells = append(cells, "(operator "+by+")")
		default:
			cells = append(cells, "(client "+cmp.Or(c.Client, "unknown")+")")
		}
		if d := details(c.Before, c.After); d != "" {
			cells = append(cells, d)
		}
		t.row(cells...)
		if (c.Kind == api.KindWent || c.Kind == api.KindStayed) && c.Explanation != "" {
			causes[c.Cause] = c.Explanation
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var notes []string
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		notes = append(notes, cause+": "+causes[cause])
	}
	for _, n := range h.Nodes {
		switch {
		case n.Error != "":
			notes = append(notes, called.of(n.Node)+" did not answer, so what only it knows is missing: "+n.Error)
		case n.Forgotten && n.Oldest.IsZero():
			notes = append(notes, called.of(n.Node)+" has forgotten all changes of this service.")
		case n.Forgotten:
			notes = append(notes, called.of(n.Node)+" has forgotten what was before "+n.Oldest.UTC().Format("2006-01-02 15:04:05")+".")
		}
	}
	if len(notes) > 0 && len(h.Changes) > 0 {
		notes = append([]string{""}, notes...)
	}
	for _, n := range notes {
		if _, err := fmt.Fprintln(p.stdout, safe(n)); err != nil {
			return err
		}
	}
	return nil
}

// details tells what is different, or what came.
func details(before, after *api.Instance) string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	health := map[bool]string{true: "healthy", false: "unhealthy"}
	use := map[bool]string{true: "enabled", false: "disabled"}
	switch {
	case after == nil:
		return ""
	case before == nil: // only what is out of the ordinary
		if after.Weight != 1 {
			say("weight %s", number(after.Weight))
		}
		if !after.Healthy {
			say("%s", health[false])
		}
		if !after.Enabled {
			say("%s", use[false])
		}
		return strings.Join(parts, "; ")
	}
	if before.ID != after.ID {
		say("id %s → %s", cmp.Or(before.ID, "none"), cmp.Or(after.ID, "none"))
	}
	if before.Weight != after.Weight {
		say("weight %s → %s", number(before.Weight), number(after.Weight))
	}
	if before.Healthy != after.Healthy {
		say("%s → %s", health[before.Healthy], health[after.Healthy])
	}
	if before.Enabled != after.Enabled {
		say("%s → %s", use[before.Enabled], use[after.Enabled])
	}
	keys := map[string]bool{}
	for k := range before.Metadata {
		keys[k] = true
	}
	for k := range after.Metadata {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		b, had := before.Metadata[k]
		a, has := after.Metadata[k]
		switch {
		case !had:
			say("+%s=%s", k, a)
		case !has:
			say("-%s", k)
		case a != b:
			say("%s=%s → %s", k, b, a)
		}
	}
	return strings.Join(parts, "; ")
}
