package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-registry/starling/pkg/api"
)

// How long an edit lasts; every help of a command that makes one says so.
const editLasts = `It survives reconnects and restarts, and ends when the instance is deregistered or has
not been there for a minute; with --sticky it stays until it is taken back.`

// A reference is how commands name one instance.
type reference struct {
	*remote
	cluster string
	sticky  bool
}

func (r *reference) flags(c *cobra.Command) {
	r.remote.flags(c, false, true)
	c.Flags().StringVar(&r.cluster, "cluster", "", "cluster of the instance (default the one that the address stands in)")
}

// stickyFlag declares --sticky, for commands that [reference.edit].
func (r *reference) stickyFlag(c *cobra.Command) {
	c.Flags().BoolVar(&r.sticky, "sticky", false, "until it is taken back; the instance need not be there yet")
}

// of reads SERVICE and IP:PORT.
func (r *reference) of(args []string) (ref api.InstanceRef, err error) {
	ip, p, err := net.SplitHostPort(args[1])
	port, err2 := strconv.ParseUint(p, 10, 16)
	if err != nil || err2 != nil || ip == "" {
		return ref, fmt.Errorf("%q is not IP:PORT, as in 10.0.0.7:8080 or [fd00::7]:8080", args[1])
	}
	return api.InstanceRef{Namespace: r.namespace, Group: r.group, Service: args[0], IP: ip, Port: int(port), Cluster: r.cluster}, nil
}

func needsInstance(more bool) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < 2 || args[0] == "" || len(args) > 2 && !more {
			return errors.New("needs SERVICE and IP:PORT")
		}
		return nil
	}
}

// again is a command line about the same instance, to be shown.
func (r *reference) again(command string, args []string, more ...string) string {
	words := append([]string{"starling", command, args[0], args[1]}, more...)
	for flag, value := range map[string]string{"--namespace": r.namespace, "--group": r.group, "--cluster": r.cluster, "--server": r.server} {
		if value != "" {
			words = append(words, flag+"="+value)
		}
	}
	slices.Sort(words[4+len(more):])
	words = slices.Insert(words, 2, strings.Fields(words[1])...) // a command may be of two words
	words = slices.Delete(words, 1, 2)
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// quoted is a word as a shell takes it.
func quoted(s string) string {
	plain := func(c rune) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.ContainsRune("-_=:.,/@+%", c)
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// write sends an edit and says what has become of the instance.
func (r *reference) write(ctx context.Context, send func(context.Context) (*api.Edited, error), say func(io.Writer, *api.Edited)) error {
	return failed(show(ctx, r.remote, send, func(w io.Writer, e *api.Edited) error { say(w, e); return nil }))
}

// edit writes what is set for the instance that args name.
func (r *reference) edit(ctx context.Context, args []string, in api.EditRequest, say func(io.Writer, *api.Edited)) error {
	client, err := r.client()
	if err != nil {
		return err
	}
	if in.InstanceRef, err = r.of(args); err != nil {
		return err
	}
	if r.sticky {
		in.Sticky = &r.sticky
	}
	return r.write(ctx, func(ctx context.Context) (*api.Edited, error) { return client.EditInstance(ctx, in) }, say)
}

// named is an instance in a sentence.
func named(e *api.Edited) string {
	s := api.JoinAddress(e.IP, e.Port)
	if e.Cluster != "DEFAULT" {
		s += " [" + e.Cluster + "]"
	}
	return safe(s + " of " + e.Name)
}

func enableCommand(p *process) *cobra.Command  { return switchCommand(p, true) }
func disableCommand(p *process) *cobra.Command { return switchCommand(p, false) }

func switchCommand(p *process, on bool) *cobra.Command {
	r := &reference{remote: &remote{p: p}}
	verb, other, what := "disable", "enable", "Keep an instance from clients until it is enabled again"
	long := `Disable an instance: clients do not see it any more, though it is registered and its
health is looked after.`
	if on {
		verb, other, what = "enable", "disable", "Show an instance to clients again"
		long = `Enable an instance: clients see it, also if it was registered as disabled.`
	}
	c := &cobra.Command{
		Use:   verb + " SERVICE IP:PORT",
		Short: what,
		Long: long + "\n\n" + editLasts + `
To keep it out whoever registers it: starling evict --help.`,
		Example: `  starling ` + verb + ` order 10.0.0.7:8080
  starling ` + verb + ` payment@@order 10.0.0.7:8080 --namespace prod
  starling ` + verb + ` order '[fd00::7]:8080' --cluster gray --sticky`,
		Args:              needsInstance(false),
		ValidArgsFunction: r.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			return r.edit(c.Context(), args, api.EditRequest{Enabled: &on}, func(w io.Writer, e *api.Edited) {
				state, undo := map[bool]string{true: "enabled: clients see it", false: "disabled: clients do not see it"}[on], r.again(other, args)
				switch {
				case e.Is == nil:
					state += " when it comes"
					undo = r.again("edits reset", args)
				case on && e.Is.Evicted:
					state = "enabled, but evicted: clients do not see it (starling evict --lift)"
				}
				if e.Before != nil && e.Before.Enabled != nil && *e.Before.Enabled == on {
					state = "still " + state
				}
				fmt.Fprintf(w, "%s is %s.\nUndo: %s\n", named(e), state, undo)
			})
		},
	}
	r.flags(c)
	r.stickyFlag(c)
	noFiles(c)
	return c
}

func weightCommand(p *process) *cobra.Command {
	r := &reference{remote: &remote{p: p}}
	c := &cobra.Command{
		Use:   "weight SERVICE IP:PORT WEIGHT",
		Short: "Give an instance more or less of the traffic",
		Long: `Set the weight of an instance, 0 to 10000, whatever its client registers: clients that
balance by weight send it so much more or less than those of weight 1, and nothing to
one of weight 0.` + "\n\n" + editLasts,
		Example: `  starling weight order 10.0.0.7:8080 0.1
  starling weight order 10.0.0.7:8080 0     # drained, but still seen`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 3 || args[0] == "" {
				return errors.New("needs SERVICE, IP:PORT and WEIGHT")
			}
			return nil
		},
		ValidArgsFunction: r.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			w, err := strconv.ParseFloat(args[2], 64)
			if err != nil || !(w >= 0 && w <= 10_000) {
				return fmt.Errorf("WEIGHT: %q is not a number from 0 to 10000", args[2])
			}
			return r.edit(c.Context(), args, api.EditRequest{Weight: &w}, func(out io.Writer, e *api.Edited) {
				was, undo := "", r.again("edits reset", args)
				if e.Was != nil {
					was, undo = ", it was "+number(e.Was.Weight), r.again("weight", args, number(e.Was.Weight))
				}
				fmt.Fprintf(out, "%s has weight %s%s.\nUndo: %s\n", named(e), number(w), was, undo)
			})
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if s := e.GetSpecifiedShortnames(); s != "" && strings.Trim(s, "0123456789.") == "" {
				return fmt.Errorf("WEIGHT: \"-%s\" is not a number from 0 to 10000", s)
			}
		}
		return err
	})
	r.flags(c)
	r.stickyFlag(c)
	noFiles(c)
	return c
}

func metadataCommand(p *process) *cobra.Command {
	r := &reference{remote: &remote{p: p}}
	c := &cobra.Command{
		Use:   "metadata SERVICE IP:PORT [KEY=VALUE | KEY-]…",
		Short: "Show or set metadata of an instance",
		Long: `Without pairs: show the metadata of an instance, and which of it operators have set.

KEY=VALUE sets a key, over what the client says; KEY- takes back what was set for it, so
that what the client says is seen again. A key that the client registers cannot be
hidden.` + "\n\n" + editLasts,
		Example: `  starling metadata order 10.0.0.7:8080
  starling metadata order 10.0.0.7:8080 zone=b 'note=to be replaced'
  starling metadata order 10.0.0.7:8080 zone-`,
		Args:              needsInstance(true),
		ValidArgsFunction: r.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			ref, err := r.of(args)
			if err != nil {
				return err
			}
			set := map[string]*string{}
			for _, pair := range args[2:] {
				key, value, given := strings.Cut(pair, "=")
				if !given {
					key, given = strings.CutSuffix(pair, "-")
					if !given {
						return fmt.Errorf("%q is neither KEY=VALUE nor KEY-", pair)
					}
				}
				if _, twice := set[key]; twice || key == "" {
					return fmt.Errorf("%q: the key is empty, or is there twice", pair)
				}
				if set[key] = &value; !strings.Contains(pair, "=") {
					set[key] = nil
				}
			}
			if len(set) == 0 {
				if r.sticky {
					return errors.New("--sticky is for what is set: name KEY=VALUE")
				}
				return failed(r.showMetadata(c.Context(), client, ref))
			}
			return r.edit(c.Context(), args, api.EditRequest{Metadata: set}, func(w io.Writer, e *api.Edited) {
				r.sayMetadata(w, e, args, set)
			})
		},
	}
	r.flags(c)
	r.stickyFlag(c)
	noFiles(c)
	return c
}

// showMetadata prints what an instance has.
func (r *reference) showMetadata(ctx context.Context, client *api.Client, ref api.InstanceRef) error {
	in, err := ask(ctx, func(ctx context.Context) (*api.Instances, error) {
		return client.Instances(ctx, api.Service{Namespace: ref.Namespace, Group: ref.Group, Name: ref.Service}, ref.Cluster)
	})
	if err != nil {
		return err
	}
	var found []api.Standing
	var clusters []string
	for _, i := range in.Instances {
		if i.IP == ref.IP && i.Port == ref.Port {
			found, clusters = append(found, i), append(clusters, i.Cluster)
		}
	}
	at := api.JoinAddress(ref.IP, ref.Port)
	switch {
	case len(found) == 0:
		return fmt.Errorf("no instance %s is in service %s in group %s, namespace %s (starling instances shows what is)", at, in.Name, in.Group, in.Namespace)
	case len(found) > 1:
		return fmt.Errorf("%s stands in several clusters: %s (say which with --cluster)", at, strings.Join(clusters, ", "))
	}
	i := found[0]
	set := map[string]string{}
	if i.Edit != nil {
		set = i.Edit.Metadata
	}
	if r.json {
		return writeJSON(r.p.stdout, i)
	}
	if len(i.Metadata) == 0 {
		fmt.Fprintf(r.p.stdout, "%s of %s has no metadata.\n", safe(at), safe(in.Name))
		return nil
	}
	t := newTable(r.p.stdout)
	t.row("KEY", "VALUE", "SET BY")
	for _, k := range slices.Sorted(maps.Keys(i.Metadata)) {
		by := "client"
		if _, ours := set[k]; ours {
			by = "operator"
		}
		t.row(k, i.Metadata[k], by)
	}
	return t.Flush()
}

// sayMetadata says what an edit has changed, and how to undo it.
func (r *reference) sayMetadata(w io.Writer, e *api.Edited, args []string, set map[string]*string) {
	before, was, is := map[string]string{}, map[string]string{}, map[string]string{}
	if e.Before != nil && e.Before.Metadata != nil {
		before = e.Before.Metadata
	}
	if e.Was != nil {
		was = e.Was.Metadata
	}
	if e.Is != nil {
		is = e.Is.Metadata
	} else if e.After != nil {
		is = e.After.Metadata
	}
	var changes, stays, undo []string
	for _, k := range slices.Sorted(maps.Keys(set)) {
		old, had := was[k]
		now, has := is[k]
		ours, set := before[k], set[k]
		_, mine := before[k]
		switch {
		case set == nil && !mine && has:
			stays = append(stays, k)
		case set == nil && has && old != now:
			changes = append(changes, k+" is "+now+" again, as its client says")
		case set == nil && !mine:
			changes = append(changes, k+" was not set")
		case set == nil:
			changes = append(changes, k+" is taken back")
		case !had:
			changes = append(changes, k+"="+now)
		case old == now:
			changes = append(changes, k+"="+now+" as before")
		default:
			changes = append(changes, k+"="+now+", it was "+old)
		}
		switch {
		case mine && (set == nil || *set != ours):
			undo = append(undo, k+"="+ours)
		case !mine && set != nil:
			undo = append(undo, k+"-")
		}
	}
	for _, c := range changes {
		fmt.Fprintf(w, "%s: %s\n", named(e), safe(c))
	}
	for _, k := range stays {
		fmt.Fprintf(w, "%s: %s stays: its client registers it. KEY=VALUE gives it another value.\n", named(e), safe(k))
	}
	if len(undo) > 0 {
		fmt.Fprintf(w, "Undo: %s\n", safe(r.again("metadata", args, undo...)))
	}
}

func evictCommand(p *process) *cobra.Command {
	r := &reference{remote: &remote{p: p}}
	var untilGone, absent, lift, list, all bool
	c := &cobra.Command{
		Use:   "evict SERVICE IP:PORT",
		Short: "Keep an instance out, whoever registers it",
		Long: `Evict an instance: clients do not see it any more, and whoever registers it is refused
until the eviction is lifted (--lift). With --until-gone it ends by itself when nobody
has tried to register it for a minute; evict without it makes it stay. What else is set
of the instance lasts as it did. All nodes know of it, and it survives restarts.

--list shows all evictions of a namespace, or of --all-namespaces. The history of the
service (starling history) tells when an instance was evicted.`,
		Example: `  starling evict order 10.0.0.7:8080
  starling evict order 10.0.0.7:8080 --until-gone
  starling evict order 10.0.0.7:8080 --lift
  starling evict --list --all-namespaces`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case list && (lift || untilGone || absent || len(args) > 0):
				return errors.New("--list takes neither an instance nor other flags of evict")
			case list:
				return nil
			case all:
				return errors.New("--all-namespaces is for --list")
			case lift && (untilGone || absent):
				return errors.New("--lift ends an eviction; --until-gone and --absent are for a new one")
			case untilGone && absent:
				return errors.New("--until-gone and --absent exclude each other: what is not there is gone")
			}
			return needsInstance(false)(c, args)
		},
		ValidArgsFunction: r.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			if list {
				return r.list(c.Context(), client, all, true)
			}
			ref, err := r.of(args)
			if err != nil {
				return err
			}
			if lift {
				return r.write(c.Context(), func(ctx context.Context) (*api.Edited, error) { return client.LiftInstance(ctx, ref) }, func(w io.Writer, e *api.Edited) {
					state := "clients see it"
					switch {
					case e.Is == nil:
						state = "clients see it when it is registered"
					case !e.Is.Enabled:
						state = "but it is disabled: clients do not see it (starling enable)"
					}
					fmt.Fprintf(w, "%s is not evicted any more, %s.\n", named(e), state)
					if e.After != nil {
						fmt.Fprintf(w, "This stays set: %s. To take it back: %s\n", safe(cmp.Or(editText(e.After), "nothing")), r.again("edits reset", args))
					}
					fmt.Fprintf(w, "Undo: %s\n", r.evictedAs(e.Before, args))
				})
			}
			in := api.EvictRequest{InstanceRef: ref, UntilGone: untilGone, Absent: absent}
			return r.write(c.Context(), func(ctx context.Context) (*api.Edited, error) { return client.EvictInstance(ctx, in) }, func(w io.Writer, e *api.Edited) {
				state := "clients do not see it, and who registers it is refused, until that is lifted"
				switch {
				case untilGone:
					state = "clients do not see it, and who registers it is refused, until nobody has tried for a minute"
				case e.Is == nil:
					state = "who registers it is refused until that is lifted"
				}
				fmt.Fprintf(w, "%s is evicted: %s.\nUndo: %s\n", named(e), state, r.evictedAs(e.Before, args))
			})
		},
	}
	r.flags(c)
	f := c.Flags()
	f.BoolVar(&untilGone, "until-gone", false, "only until nobody has tried to register it for a minute")
	f.BoolVar(&absent, "absent", false, "the instance need not be there yet")
	f.BoolVar(&lift, "lift", false, "end the eviction")
	f.BoolVar(&list, "list", false, "list all evictions")
	f.BoolVar(&all, "all-namespaces", false, "list those of all namespaces")
	noFiles(c)
	return c
}

// evictedAs is the command that makes an eviction what it was before.
func (r *reference) evictedAs(was *api.Edit, args []string) string {
	switch {
	case was == nil || !was.Evicted:
		return r.again("evict", args, "--lift")
	case !was.StaysOut:
		return r.again("evict", args, "--until-gone")
	}
	return r.again("evict", args)
}

func editsCommand(p *process) *cobra.Command {
	r := &reference{remote: &remote{p: p}}
	all := false
	c := &cobra.Command{
		Use:   "edits",
		Short: "List what operators have set for instances",
		Long: `List what operators have set for the instances of a namespace: enabled, weight and
metadata, and evictions; those of instances too that are not there at the moment.

What is set is laid over what clients say. It ends with the instance (deregistered, or
not there for a minute) unless it is sticky. An eviction ends when it is lifted or, if
it says "until gone", when the instance has not been there for a minute.`,
		Example: `  starling edits
  starling edits --all-namespaces --json | jq -r '.edits[] | select(.there | not) | .ip'
  starling edits reset order 10.0.0.7:8080`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(c.Context(), client, all, false)
		},
	}
	r.remote.flags(c, false, true)
	c.Flags().Lookup("group").Hidden = true
	c.Flags().BoolVar(&all, "all-namespaces", false, "those of all namespaces")
	noFiles(c)
	c.AddCommand(resetCommand(p))
	return c
}

// list prints all edits, or only the evictions.
func (r *reference) list(ctx context.Context, client *api.Client, all, evictions bool) error {
	namespace := cmp.Or(r.namespace, "public")
	if all {
		if r.namespace != "" {
			return errors.New("--namespace and --all-namespaces exclude each other")
		}
		namespace = ""
	}
	return failed(show(ctx, r.remote, func(ctx context.Context) (*api.Edits, error) {
		e, err := client.Edits(ctx, namespace)
		if err == nil && evictions {
			e.Edits = slices.DeleteFunc(e.Edits, func(e api.InstanceEdit) bool { return !e.Evicted })
		}
		return e, err
	}, func(w io.Writer, e *api.Edits) error { return writeEdits(w, e, namespace, evictions) }))
}

// writeEdits prints edits of a namespace, "" of all.
func writeEdits(w io.Writer, e *api.Edits, namespace string, evictions bool) error {
	all := namespace == ""
	if len(e.Edits) == 0 {
		what, where := "set for any instance", "in namespace "+safe(namespace)
		if evictions {
			what = "evicted"
		}
		if all {
			where = "in any namespace"
		} else {
			where += "; --all-namespaces shows the others"
		}
		_, err := fmt.Fprintf(w, "Nothing is %s %s.\n", what, where)
		return err
	}
	t := newTable(w)
	head := []string{"SERVICE", "GROUP", "INSTANCE", "CLUSTER", "THERE", "SET", "SINCE"}
	if all {
		head = append([]string{"NAMESPACE"}, head...)
	}
	t.row(head...)
	for _, i := range e.Edits {
		since := "-"
		if !i.Since.IsZero() {
			since = i.Since.UTC().Format("2006-01-02 15:04:05")
		}
		cells := []string{i.Name, i.Group, api.JoinAddress(i.IP, i.Port), i.InstanceKey.Cluster, map[bool]string{true: "yes", false: "no"}[i.There], editText(&i.Edit), since}
		if all {
			cells = append([]string{i.Namespace}, cells...)
		}
		t.row(cells...)
	}
	return t.Flush()
}

func resetCommand(p *process) *cobra.Command {
	r := &reference{remote: &remote{p: p}}
	c := &cobra.Command{
		Use:   "reset SERVICE IP:PORT",
		Short: "Take back what operators have set for an instance",
		Long: `Take back what operators have set for an instance: it is seen as its client registers
it. An eviction stays as it is; starling evict --lift ends that.`,
		Example: `  starling edits reset order 10.0.0.7:8080`,
		Args:    needsInstance(false), ValidArgsFunction: r.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			return r.edit(c.Context(), args, api.EditRequest{Reset: true}, func(w io.Writer, e *api.Edited) {
				if e.Before == nil {
					fmt.Fprintf(w, "Nothing was set for %s.\n", named(e))
					return
				}
				fmt.Fprintf(w, "Nothing is set for %s any more; it was: %s.\n", named(e), safe(cmp.Or(editText(e.Before), "nothing")))
				if e.After != nil && e.After.Evicted {
					fmt.Fprintf(w, "It is still evicted. To end that: %s\n", r.again("evict", args, "--lift"))
				}
			})
		},
	}
	r.flags(c)
	noFiles(c)
	return c
}
