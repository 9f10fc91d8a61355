package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/client"
)

// A caller is what register, get and watch have in common. They are clients of
// the registry as applications are, of Starling or of Nacos, and see what these
// see; the other commands ask Starling's nodes what is behind that.
type caller struct {
	remote
	cacheDir string
	timeout  time.Duration // until the first answer
}

func (r *caller) flags(c *cobra.Command) {
	r.remote.flags(c, true, true)
	f := c.Flags()
	f.Lookup("servers").Usage = "HOST[:PORT],… of all nodes: the command is at one of them, and goes to another when that fails (default $STARLING_SERVERS, or else --server)"
	f.Lookup("server").Usage = "the only node, HOST[:PORT] (default $STARLING_SERVER, or else 127.0.0.1:8848)"
	f.Lookup("json").Usage = "print JSON"
	f.DurationVar(&r.timeout, "timeout", askTimeout, "fail if there is no first answer after so long")
}

// cacheFlag is for commands that read.
func (r *caller) cacheFlag(c *cobra.Command) {
	c.Flags().StringVar(&r.cacheDir, "cache-dir", "off", "`DIR` of an application's client: its lists, and its failover files while they are on, count as they do for that")
	if err := c.MarkFlagDirname("cache-dir"); err != nil {
		panic("BUG: " + err.Error())
	}
}

// callerHelp ends the help of each of these commands.
const callerHelp = `
STARLING_USERNAME and STARLING_PASSWORD log in, where the servers ask for that.`

// addresses are those of --servers, --server, STARLING_SERVERS or
// STARLING_SERVER, in this order.
func (r *caller) addresses() ([]string, error) {
	if len(r.servers) > 0 && r.server != "" {
		return nil, errors.New("--server and --servers exclude each other")
	}
	list, from := r.servers, "--servers"
	switch all, one := r.p.variable(serversVariable), r.p.variable(serverVariable); {
	case len(list) > 0:
	case r.server != "":
		list, from = []string{r.server}, "--server"
	case all != "":
		list, from = strings.Split(all, ","), serversVariable
	case one != "":
		list, from = []string{one}, serverVariable
	default:
		list = []string{"127.0.0.1"}
	}
	var addrs []string
	for _, s := range list {
		// The same syntax as for all other commands.
		c, err := api.NewClient(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		if !slices.Contains(addrs, c.Server()) {
			addrs = append(addrs, c.Server())
		}
	}
	return addrs, nil
}

// connect makes a client, which the command closes, and starts it.
func (r *caller) connect(opts ...client.Option) (*client.Client, error) {
	addrs, err := r.addresses()
	if err != nil {
		return nil, err
	}
	if r.timeout <= 0 {
		return nil, errors.New("--timeout: must be above 0")
	}
	cfg := client.Config{
		Addrs: addrs, Namespace: r.namespace, AppName: "starling-cli",
		Username: r.p.variable(usernameVariable), Password: r.p.variable(passwordVariable),
		CacheDir: r.cacheDir, LoadCacheAtStart: true,
	}
	if r.cacheDir == "" || r.cacheDir == "off" {
		cfg.CacheDir, cfg.FailoverDir = "off", "off"
	}
	// What a person is to know the command says itself.
	return client.New(cfg, append([]client.Option{client.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
}

// completeService asks the first of the nodes.
func (r *caller) completeService(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	addrs, err := r.addresses()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	one := remote{p: r.p, server: addrs[0], namespace: r.namespace, group: r.group}
	return one.completeService(c, args, typed)
}

// unanswered makes an error of a command of what a client says.
func unanswered(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, client.ErrInvalid) {
		if _, refused := errors.AsType[*client.ServerError](err); !refused {
			return err // the arguments, and no server was asked
		}
	}
	text := lines(err)
	switch {
	case errors.Is(err, client.ErrNotConnected):
		text += "\nName other nodes with --servers HOST[:PORT],… or in " + serversVariable + "."
	case errors.Is(err, client.ErrUnauthorized):
		text += "\n" + usernameVariable + " and " + passwordVariable + " log in."
	}
	return errFailed{errors.New(text)}
}

// News of a client are what it tells while it runs. They are told in order. What
// nobody takes in time is dropped: they are for a person.
type news struct {
	client.NoMetrics
	c chan report
}

// A report is about the connection, or about a request if that has a type.
type report struct {
	state   client.State
	server  string
	request string
	err     error
}

func newNews() news { return news{c: make(chan report, 256)} }

func (n news) put(r report) {
	select {
	case n.c <- r:
	default:
	}
}

func (n news) State(s client.State, server string) { n.put(report{state: s, server: server}) }
func (n news) Request(typ string, _ time.Duration, err error) {
	n.put(report{request: typ, err: err})
}

// The JSON of what clients see. A programme finds the names of the native API.

type listJSON struct {
	api.Service
	Source    string         `json:"source"` // server, stale, disk or failover
	AsOf      time.Time      `json:"asOf"`
	Protected bool           `json:"protected"`
	Instances []instanceJSON `json:"instances"`
}

type instanceJSON struct {
	api.InstanceKey
	Weight    float64           `json:"weight"`
	Healthy   bool              `json:"healthy"`
	Enabled   bool              `json:"enabled"`
	Ephemeral bool              `json:"ephemeral"`
	Metadata  map[string]string `json:"metadata"`
}

func (r *caller) listOf(s client.Snapshot) listJSON {
	return listJSON{Service: r.serviceOf(s.Service), Source: sourceOf(s.Source), AsOf: s.AsOf, Protected: s.Protected, Instances: instancesOf(s.Instances)}
}

func (r *caller) serviceOf(id client.ServiceID) api.Service {
	namespace := r.namespace
	if namespace == "" {
		namespace = "public"
	}
	return api.Service{Namespace: namespace, Group: id.Group, Name: id.Name}
}

func instancesOf(list []client.Instance) []instanceJSON {
	out := make([]instanceJSON, 0, len(list))
	for _, i := range list {
		out = append(out, instanceJSON{api.InstanceKey{IP: i.IP, Port: i.Port, Cluster: i.Cluster}, i.Weight, i.Healthy, i.Enabled, i.Ephemeral, i.Metadata})
	}
	return out
}

func sourceOf(s client.Source) string {
	switch s {
	case client.FromServer:
		return "server"
	case client.FromStale:
		return "stale"
	case client.FromDisk:
		return "disk"
	case client.FromFailover:
		return "failover"
	}
	return strconv.Itoa(int(s))
}

// seenAs is what is out of the ordinary of an instance, as stateOf has it.
func seenAs(i *client.Instance) string {
	words := stateOf(&api.Standing{Healthy: i.Healthy, Enabled: i.Enabled, State: api.StandsLiving})
	if !i.Ephemeral {
		words += ", persistent"
	}
	return words
}

// worth says of a list that is not what a server says now where it is from; "" of
// one that is.
func worth(s client.Snapshot, now time.Time) string {
	old := span(now.Sub(s.AsOf)) + " old"
	if s.AsOf.IsZero() {
		old = "of unknown age"
	}
	switch s.Source {
	case client.FromStale:
		return "No server confirms this list; it is " + old + "."
	case client.FromDisk:
		return "No server has been heard yet; this list is from the disk, and " + old + "."
	case client.FromFailover:
		return "An operator has put this list there (failover); it is " + old + "."
	}
	return ""
}

func addressOf(i *client.Instance) string { return net.JoinHostPort(i.IP, strconv.Itoa(i.Port)) }

// A filter is which instances get and watch show.
type filter struct {
	healthy  bool
	clusters []string
}

func (f *filter) flags(c *cobra.Command) {
	c.Flags().BoolVar(&f.healthy, "healthy", false, "only instances that a caller may use: healthy, enabled, of a weight above 0")
	c.Flags().StringSliceVar(&f.clusters, "cluster", nil, "only those of these clusters of the service")
}

func (f *filter) options(group string) []client.QueryOption {
	opts := []client.QueryOption{client.Group(group)}
	if len(f.clusters) > 0 {
		opts = append(opts, client.Clusters(f.clusters...))
	}
	if f.healthy {
		opts = append(opts, client.Where(func(i client.Instance) bool { return i.Healthy && i.Enabled && i.Weight > 0 }))
	}
	return opts
}

// line is a line that is no part of a table.
func line(w io.Writer, at time.Time, words ...string) error {
	for i, s := range words {
		words[i] = safe(s)
	}
	_, err := fmt.Fprintf(w, "%s  %s\n", at.Format("15:04:05.000"), strings.Join(words, "  "))
	return err
}

// within runs a question with the time of the first answer.
func (r *caller) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.timeout)
}
