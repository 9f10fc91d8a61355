package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

func servicesCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	q := api.ServicesQuery{Limit: 1000}
	c := &cobra.Command{
		Use:   "services [NAME-PART]",
		Short: "List the services of a namespace",
		Long: `List the services of a namespace, of all groups unless --group names one, and only
those whose name contains NAME-PART.

KIND is ephemeral or persistent, as the instances are, and free while there are none:
the next one decides. HEALTHY is how many of the instances are, disabled ones included.
Protected is a service of which so few are healthy that clients are shown all of them as
healthy (its protection threshold). CHANGED is how long ago readers saw the last change.`,
		Example: `  starling services
  starling services order --namespace prod --watch
  starling services --all-namespaces --json | jq '.services[] | select(.healthy == 0)'`,
		Args:              r.watched(cobra.MaximumNArgs(1)),
		ValidArgsFunction: r.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			if q.AllNamespaces && r.namespace != "" {
				return fmt.Errorf("--namespace and --all-namespaces exclude each other")
			}
			if q.Limit < 1 || q.Limit > 10_000 {
				return fmt.Errorf("--limit: %d is not between 1 and 10000", q.Limit)
			}
			q.Namespace, q.Group = r.namespace, r.group
			if len(args) > 0 {
				q.Name = args[0]
				if group, name, grouped := strings.Cut(q.Name, "@@"); grouped {
					if r.group != "" && r.group != group {
						return fmt.Errorf("NAME-PART names the group %s, --group another", group)
					}
					q.Group, q.Name = group, name
				}
			}
			return failed(show(c.Context(), r, func(ctx context.Context) (*api.Services, error) { return client.Services(ctx, q) },
				func(w io.Writer, s *api.Services) error { return writeServices(w, s, q) }))
		},
	}
	r.flags(c, false, true)
	c.Flags().Lookup("group").Usage = "group of the services (default all)"
	c.Flags().BoolVar(&q.AllNamespaces, "all-namespaces", false, "those of all namespaces")
	c.Flags().IntVar(&q.Limit, "limit", q.Limit, "show at most `N` services, up to 10000")
	r.watchFlag(c)
	noFiles(c)
	return c
}

func writeServices(w io.Writer, s *api.Services, q api.ServicesQuery) error {
	if s.Total == 0 {
		where := "in namespace " + safe(cmp.Or(q.Namespace, "public"))
		if q.AllNamespaces {
			where = "in any namespace"
		}
		hint := "An SDK registers them, or: curl -X POST 'http://127.0.0.1:8848/nacos/v1/ns/instance?serviceName=hello&ip=10.0.0.1&port=8080'"
		switch {
		case q.Name != "" || q.Group != "":
			where += " with that name or group"
			hint = "Without these all are shown; those of other namespaces with --all-namespaces."
		case !q.AllNamespaces:
			hint = "Those of other namespaces: --all-namespaces."
		}
		_, err := fmt.Fprintf(w, "No service is %s.\n%s\n", where, hint)
		return err
	}
	t := newTable(w)
	head := []string{"SERVICE", "GROUP", "KIND", "HEALTHY", "CLUSTERS", "CHANGED", "NOTES"}
	if q.AllNamespaces {
		head = append([]string{"NAMESPACE"}, head...)
	}
	t.row(head...)
	for _, one := range s.Services {
		var notes []string
		if n := one.Instances - one.Enabled; n > 0 {
			notes = append(notes, strconv.Itoa(n)+" disabled")
		}
		if one.Evicted > 0 {
			notes = append(notes, strconv.Itoa(one.Evicted)+" evicted")
		}
		if one.Protected {
			notes = append(notes, "protected")
		}
		cells := []string{one.Name, one.Group, one.Kind, fmt.Sprintf("%d/%d", one.Healthy, one.Instances), some(one.Clusters, 3), ago(s.At, one.Changed), strings.Join(notes, ", ")}
		if q.AllNamespaces {
			cells = append([]string{one.Namespace}, cells...)
		}
		t.row(cells...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if left := s.Total - s.Offset - len(s.Services); left > 0 {
		_, err := fmt.Fprintf(w, "%s more: name a part of the name, or raise --limit.\n", count(left, "service is", "services are"))
		return err
	}
	return nil
}

// some is the beginning of a list, in words.
func some(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
}

func instancesCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	cluster := ""
	c := &cobra.Command{
		Use:   "instances SERVICE",
		Short: "List the instances of a service, with what operators have set",
		Long: `List the instances of a service as one node sees them, those too that clients are not
shown: disabled and evicted ones.

An instance is orphaned while the node of its client is gone and nobody else has taken
the client yet, and moving while its client is expected at another node: clients see no
difference. NODE is where the client is attached; persistent instances have none. EDIT
is what operators have set; the values shown are with it. SERVICE may be GROUP@@NAME.`,
		Example: `  starling instances order
  starling instances order --namespace prod --watch=1s
  starling instances payment@@order --json | jq '.instances[] | select(.healthy | not)'`,
		Args:              r.watched(needsService),
		ValidArgsFunction: r.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return failed(show(c.Context(), r, func(ctx context.Context) (*api.Instances, error) {
				return client.Instances(ctx, r.service(args[0]), cluster)
			}, writeInstances))
		},
	}
	r.flags(c, false, true)
	c.Flags().StringVar(&cluster, "cluster", "", "only those of one cluster of the service")
	r.watchFlag(c)
	noFiles(c)
	return c
}

func needsService(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("needs one SERVICE")
	}
	return nil
}

func (r *remote) service(name string) api.Service {
	return api.Service{Namespace: r.namespace, Group: r.group, Name: name}
}

func writeInstances(w io.Writer, in *api.Instances) error {
	if len(in.Instances) == 0 {
		_, err := fmt.Fprintf(w, "Service %s in group %s, namespace %s has no instances.\nstarling history %s tells which it had, and why they went.\n",
			safe(in.Name), safe(in.Group), safe(in.Namespace), safe(in.Name))
		return err
	}
	t := newTable(w)
	t.row("INSTANCE", "CLUSTER", "STATE", "WEIGHT", "NODE", "REGISTERED", "METADATA", "EDIT")
	for _, i := range in.Instances {
		node := cmp.Or(i.NodeName, short(i.Node))
		if !i.Ephemeral {
			node = "persistent"
		}
		t.row(api.JoinAddress(i.IP, i.Port), i.Cluster, stateOf(&i), number(i.Weight), node, ago(in.At, i.Registered), clipped(pairs(i.Metadata), 60), clipped(editText(i.Edit), 60))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if in.Protected {
		_, err := fmt.Fprintf(w, "At most %s of the instances are healthy (protection threshold): clients are shown all as healthy.\n", percent(in.Threshold))
		return err
	}
	return nil
}

// stateOf is what is out of the ordinary of an instance, in words.
func stateOf(i *api.Standing) string {
	words := []string{"healthy"}
	if !i.Healthy {
		words[0] = "unhealthy"
	}
	if i.Evicted {
		words = append(words, "evicted")
	}
	if !i.Enabled {
		words = append(words, "disabled")
	}
	if i.State != api.StandsLiving {
		words = append(words, i.State)
	}
	return strings.Join(words, ", ")
}

// editText is an edit in a few words; "" for none.
func editText(e *api.Edit) string {
	if e == nil {
		return ""
	}
	var words []string
	switch {
	case e.Evicted && e.StaysOut:
		words = append(words, "evicted")
	case e.Evicted:
		words = append(words, "evicted until gone")
	}
	if e.Enabled != nil {
		words = append(words, map[bool]string{true: "enabled", false: "disabled"}[*e.Enabled])
	}
	if e.Weight != nil {
		words = append(words, "weight "+number(*e.Weight))
	}
	if len(e.Metadata) > 0 {
		words = append(words, pairs(e.Metadata))
	}
	if e.Sticky {
		words = append(words, "sticky")
	}
	return strings.Join(words, ", ")
}

func number(w float64) string { return strconv.FormatFloat(w, 'g', -1, 64) }

func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 3, 64) + " %" }

// pairs is metadata as key=value, by key.
func pairs(md map[string]string) string {
	var b strings.Builder
	for n, k := range slices.Sorted(maps.Keys(md)) {
		if n > 0 {
			b.WriteString(" ")
		}
		b.WriteString(k + "=" + md[k])
	}
	return b.String()
}

// clipped is the beginning of a text that would make a table too wide.
func clipped(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// completeTimeout bounds the questions of a completion: somebody waits at the
// prompt.
const completeTimeout = time.Second

// completeService offers the names of services for a first argument.
func (r *remote) completeService(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return r.complete(c, func(ctx context.Context, client *api.Client) (names []string) {
		s, err := client.Services(ctx, api.ServicesQuery{Namespace: r.namespace, Group: r.group, Name: typed})
		if err != nil {
			return nil
		}
		for _, one := range s.Services {
			if strings.HasPrefix(one.Name, typed) && !slices.Contains(names, one.Name) {
				names = append(names, one.Name)
			}
		}
		return names
	})
}

// completeNamespace offers the namespaces that there are, by their ids.
func (r *remote) completeNamespace(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return r.namespacesLike(c, typed, false)
}

// completeMade offers, for a first argument, those that somebody has made.
func (r *remote) completeMade(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return r.namespacesLike(c, typed, true)
}

func (r *remote) namespacesLike(c *cobra.Command, typed string, made bool) ([]string, cobra.ShellCompDirective) {
	return r.complete(c, func(ctx context.Context, client *api.Client) (ids []string) {
		ns, err := client.Namespaces(ctx)
		if err != nil {
			return nil
		}
		for _, n := range ns.Namespaces {
			if (n.InTable || !made) && strings.HasPrefix(n.ID, typed) {
				ids = append(ids, n.ID)
			}
		}
		return ids
	})
}

// completeInstance offers names of services, and then addresses.
func (r *remote) completeInstance(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return r.completeService(c, args, typed)
	}
	return r.complete(c, func(ctx context.Context, client *api.Client) (at []string) {
		in, err := client.Instances(ctx, r.service(args[0]), "")
		if err != nil {
			return nil
		}
		for _, i := range in.Instances {
			if a := api.JoinAddress(i.IP, i.Port); strings.HasPrefix(a, typed) && !slices.Contains(at, a) {
				at = append(at, a)
			}
		}
		return at
	})
}

func (r *remote) complete(c *cobra.Command, of func(context.Context, *api.Client) []string) ([]string, cobra.ShellCompDirective) {
	client, err := r.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	words := of(ctx, client)
	// A shell may run what a name holds, or draw it.
	words = slices.DeleteFunc(words, func(s string) bool { return safe(s) != s || strings.ContainsAny(s, " \t`$\\\"'") })
	return words, cobra.ShellCompDirectiveNoFileComp
}
