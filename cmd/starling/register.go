package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/nacos"
)

// leaveTimeout bounds the end of a registration.
const leaveTimeout = 3 * time.Second

func registerCommand(p *process) *cobra.Command {
	g := &registering{caller: caller{remote: remote{p: p}}}
	c := &cobra.Command{
		Use:   "register SERVICE IP:PORT",
		Short: "Register an instance, and keep it registered until Ctrl-C",
		Long: `Register an instance as an application does, and keep it registered until Ctrl-C or a
signal to end: then it is deregistered. When its node fails it is registered again at
another one of --servers before anybody misses it. It says when it is connected, has
lost its node, and is registered again. SERVICE may be GROUP@@NAME.

With --persistent the instance stays without the command, which ends at once; the
servers check its health.
` + callerHelp + `

The exit status is 0 when the instance has been deregistered (or, persistent, been
registered), and 1 when it could not be registered within --timeout, a server refused
it, or none took the end of it: then servers take it out when they miss the client.`,
		Example: `  starling register order 10.0.0.7:8080
  starling register payment@@order '[fd00::7]:8080' --metadata zone=a --metadata v=2
  starling register order 10.0.0.7:8080 --servers node-1,node-2,node-3 --namespace prod
  starling register db 10.0.0.9:5432 --persistent`,
		Args:              needsInstance(false),
		ValidArgsFunction: g.completeService,
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.read(args); err != nil {
				return err
			}
			return g.run(c.Context())
		},
	}
	g.caller.flags(c)
	f := c.Flags()
	f.StringVar(&g.r.Cluster, "cluster", "", "cluster of the instance (default DEFAULT)")
	f.Float64Var(&g.r.Weight, "weight", 1, "its share of the traffic, 0 (none) to 10000")
	f.StringArrayVar(&g.metadata, "metadata", nil, "`KEY=VALUE` of its metadata; for several: several times")
	f.BoolVar(&g.r.Disabled, "disabled", false, "register it as one that is not to be used")
	f.BoolVar(&g.r.Persistent, "persistent", false, "it stays until it is deregistered, and servers check its health")
	noFiles(c)
	return c
}

// A registering is one run of the command.
type registering struct {
	caller
	service  string
	r        client.Registration
	metadata []string

	// of the run
	cl *client.Client
	at string // where it was registered last
	// missing: the connection has been lost since. refused is what a server said
	// last, so that it is said once.
	missing bool
	refused string
}

func (g *registering) read(args []string) error {
	g.service = args[0]
	ip, port, err := net.SplitHostPort(args[1])
	n, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || ip == "" {
		return fmt.Errorf("%q is not IP:PORT, as in 10.0.0.7:8080 or [fd00::7]:8080", args[1])
	}
	g.r.IP, g.r.Port = ip, int(n)
	if w := g.r.Weight; !(w >= 0 && w <= 10_000) {
		return fmt.Errorf("--weight: %v is not from 0 to 10000", w)
	}
	g.r.ZeroWeight = g.r.Weight == 0
	g.r.Metadata = map[string]string{}
	for _, pair := range g.metadata {
		key, value, ok := strings.Cut(pair, "=")
		if _, twice := g.r.Metadata[key]; !ok || key == "" || twice {
			return fmt.Errorf("--metadata: %q is not KEY=VALUE, or the key is there twice", pair)
		}
		g.r.Metadata[key] = value
	}
	return nil
}

func (g *registering) run(ctx context.Context) error {
	ctx, stop := g.p.untilStopped(ctx)
	defer stop()
	said := newNews()
	var err error
	if g.cl, err = g.connect(client.WithMetrics(said)); err != nil {
		return err
	}
	defer g.cl.Close()

	type answer struct {
		lease *client.Lease
		err   error
	}
	answered := make(chan answer, 1)
	first, cancel := g.within(ctx)
	defer cancel()
	go func() {
		l, err := g.cl.Register(first, g.service, g.r, client.Group(g.group))
		answered <- answer{l, err}
	}()
	var lease *client.Lease
	for {
		select {
		case a := <-answered:
			if cause := context.Cause(ctx); a.err != nil && cause != nil {
				return failed(fmt.Errorf("not registered: %w", cause))
			}
			if a.err != nil {
				return unanswered(a.err)
			}
			lease, g.at = a.lease, g.cl.Server()
			text := "registered; Ctrl-C takes it away"
			if g.r.Persistent {
				text = "registered; it stays. Undo: curl -X DELETE '" + g.undo() + "'"
			}
			if err := g.say("registered", g.at, text, nil); err != nil || g.r.Persistent {
				return failed(err)
			}
		case r := <-said.c:
			if err := g.tell(r, lease != nil); err != nil {
				return failed(err)
			}
		case <-ctx.Done():
			if lease == nil {
				// Register returns now: it may have been accepted.
				a := <-answered
				if lease = a.lease; lease == nil {
					return failed(fmt.Errorf("not registered: %w", context.Cause(ctx)))
				}
			}
			return g.leave(ctx, lease)
		}
	}
}

// undo is where a persistent instance is deregistered.
func (g *registering) undo() string {
	q := url.Values{"serviceName": {g.service}, "ip": {g.r.IP}, "port": {strconv.Itoa(g.r.Port)}, "ephemeral": {"false"}}
	for name, value := range map[string]string{"namespaceId": g.namespace, "groupName": g.group, "clusterName": g.r.Cluster} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "http://" + g.at + "/nacos/v1/ns/instance?" + q.Encode()
}

// leave deregisters.
func (g *registering) leave(ctx context.Context, lease *client.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := lease.Deregister(ctx); err != nil {
		return failed(fmt.Errorf("no server took the end of the registration, so it ends when they miss the client: %w", err))
	}
	return failed(g.say("deregistered", g.cl.Server(), "deregistered", nil))
}

// tell says what is worth it of the news.
func (g *registering) tell(r report, registered bool) error {
	switch r.request {
	case "":
		switch r.state {
		case client.Ready:
			return g.say("connected", r.server, "connected", nil)
		case client.Connecting:
			if registered {
				g.missing = true
				return g.say("lost", r.server, "connection lost", nil)
			}
		case client.Degraded:
			return g.say("away", "", "still no connection to any server; trying again", nil)
		}
	case nacos.TypeInstanceRequest, nacos.TypeBatchInstanceRequest:
		_, refused := errors.AsType[*client.ServerError](r.err)
		switch at := g.cl.Server(); {
		case !registered:
		case refused:
			// The client tries again every now and then.
			if text := r.err.Error(); text != g.refused {
				g.refused = text
				return g.say("refused", at, "not registered", r.err)
			}
		case r.err == nil && (g.missing || g.refused != "" || at != g.at):
			g.missing, g.refused, g.at = false, "", at
			return g.say("registered", at, "registered again", nil)
		}
	}
	return nil
}

// say prints one line.
func (g *registering) say(event, server, text string, reason error) error {
	now := time.Now()
	if g.json {
		v := struct {
			At     time.Time `json:"at"`
			Event  string    `json:"event"`
			Server string    `json:"server,omitempty"`
			Reason string    `json:"reason,omitempty"`
		}{now, event, server, ""}
		if reason != nil {
			v.Reason = reason.Error()
		}
		return writeJSONLine(g.p.stdout, v)
	}
	words := []string{text}
	if server != "" {
		words = []string{server, text}
	}
	if reason != nil {
		words[len(words)-1] += ": " + reason.Error()
	}
	return line(g.p.stdout, now, words...)
}

// writeJSONLine is for programs that read line by line.
func writeJSONLine(w interface{ Write([]byte) (int, error) }, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(safeJSON(b), '\n'))
	return err
}
