package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-registry/starling/pkg/api"
)

// serverVariable names the node that commands ask. It is no setting of a node.
const serverVariable = envPrefix + "SERVER"

// Of the commands that are clients, and of the example programs: all nodes, and
// who logs in. They are no settings of a node either.
const (
	serversVariable  = serverVariable + "S"
	usernameVariable = envPrefix + "USERNAME"
	passwordVariable = envPrefix + "PASSWORD"
)

// variable is what the environment has of a name, "" if nothing.
func (p *process) variable(name string) (value string) {
	for _, kv := range p.env {
		// The last one counts, as for a process.
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}

// askTimeout bounds one question to one node.
const askTimeout = 10 * time.Second

// A remote is what the commands have in common that ask running nodes.
type remote struct {
	p                *process
	server           string
	servers          []string // only of commands that compare nodes
	namespace, group string
	json             bool
	watch            time.Duration // between two questions; 0: there is one
}

// flags declares the common flags. Namespace and group are accepted by all
// commands, so that a script can pass the same to each; they are shown only
// where they mean something.
func (r *remote) flags(c *cobra.Command, several, named bool) {
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&r.server, "server", "", "HOST[:PORT] of the node to ask, its HTTP port (default $STARLING_SERVER, or else 127.0.0.1:8848)")
	if several {
		f.StringSliceVar(&r.servers, "servers", nil, "HOST[:PORT],… of the nodes to compare (default all members that --server knows)")
	}
	f.StringVar(&r.namespace, "namespace", "", "namespace of the service (default public)")
	f.StringVar(&r.group, "group", "", "group of the service (default DEFAULT_GROUP)")
	f.BoolVar(&r.json, "json", false, "print JSON instead of tables")
	for _, name := range []string{"namespace", "group"} {
		f.Lookup(name).Hidden = !named
	}
	if named {
		if err := c.RegisterFlagCompletionFunc("namespace", r.completeNamespace); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}

// noFiles ends the shell's completion of file names: no flag takes one.
func noFiles(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, names := c.GetFlagCompletionFunc(f.Name); names || f.Value.Type() == "bool" {
			return
		}
		if err := c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions); err != nil {
			panic("BUG: " + err.Error())
		}
	})
}

// client makes the client of --server.
func (r *remote) client() (*api.Client, error) {
	log.SetOutput(io.Discard) // net/http writes there what a server of another protocol says
	server := r.server
	if server == "" {
		if server = r.p.variable(serverVariable); server != "" {
			c, err := api.NewClient(server)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", serverVariable, err)
			}
			return c, nil
		}
		server = "127.0.0.1"
	}
	c, err := api.NewClient(server)
	if err != nil {
		return nil, fmt.Errorf("--server: %w", err)
	}
	return c, nil
}

// clients makes those of --servers; none if it is not given.
func (r *remote) clients() ([]*api.Client, error) {
	if len(r.servers) > 0 && r.server != "" {
		return nil, errors.New("--server and --servers exclude each other")
	}
	log.SetOutput(io.Discard)
	var clients []*api.Client
	for _, s := range r.servers {
		c, err := api.NewClient(s)
		if err != nil {
			return nil, fmt.Errorf("--servers: %w", err)
		}
		if slices.ContainsFunc(clients, func(o *api.Client) bool { return o.Server() == c.Server() }) {
			return nil, fmt.Errorf("--servers: %s is there twice", c.Server())
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// failed makes an error of a command of what went wrong, safe to print: a line
// for each error of a joined one.
func failed(err error) error {
	if err == nil {
		return nil
	}
	text := lines(err)
	if api.CodeOf(err) == api.CodeCannotReach {
		text += "\nName another node with --server HOST[:PORT] or in " + serverVariable + "."
	}
	return errFailed{errors.New(text)}
}

func lines(err error) string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return safe(err.Error())
	}
	var all []string
	for _, e := range joined.Unwrap() {
		all = append(all, lines(e))
	}
	return strings.Join(all, "\n")
}

// labelled says of whom a text is, unless it begins with that.
func labelled(who, text string) string {
	if strings.HasPrefix(text, who+" ") {
		return text
	}
	return who + ": " + text
}

// ask bounds a question to one node.
func ask[T any](ctx context.Context, question func(context.Context) (*T, error)) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return question(ctx)
}

// writeJSON prints a value for programs. What a terminal could take for a
// command is escaped, which changes nothing for a reader of JSON.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(safeJSON(b), '\n'))
	return err
}

func safeJSON(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out = append(out, b[:n]...)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}

// safe makes a text that came from elsewhere fit for a line on a terminal:
// control characters, which could move the cursor or fake lines, and those
// that turn the direction of writing are escaped, and it has an end.
func safe(s string) string {
	const most = 400
	var b strings.Builder
	n := 0
	for len(s) > 0 {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case strconv.IsPrint(r) && (r != utf8.RuneError || size > 1):
			b.WriteRune(r)
		case size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[size:]
	}
	return b.String()
}

// A table is text in columns. Cells may be of anybody's making.
type table struct {
	*tabwriter.Writer
}

func newTable(w io.Writer) table {
	return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

// row adds a row. The writer leaves blanks behind the last cell if that is
// empty, so it never is.
func (t table) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			c = "-"
		}
		cells[i] = safe(c)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// nodeNames tells nodes by name, and by the beginning of the id where the
// name is not known or not the only one.
type nodeNames map[string]string // id → what to call it

func newNodeNames(names map[string]string) nodeNames {
	times := map[string]int{}
	for _, name := range names {
		times[name]++
	}
	n := nodeNames{}
	for id, name := range names {
		switch {
		case name == "":
			n[id] = short(id)
		case times[name] > 1:
			n[id] = name + " (" + short(id) + ")"
		default:
			n[id] = name
		}
	}
	return n
}

func (n nodeNames) of(id string) string {
	if name, ok := n[id]; ok {
		return name
	}
	return short(id)
}

// short is the beginning of an id, enough to tell a few nodes apart.
func short(id string) string { return id[:min(8, len(id))] }

// span is a duration for people: two units of it at most.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Truncate(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}

// millis is span of what the API has as milliseconds.
func millis(ms int64) string { return span(time.Duration(ms) * time.Millisecond) }

// ago is how long before now a time was; "-" for none.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(now.Sub(t))
}

// count is a number with what it counts, in the right form.
func count(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}
