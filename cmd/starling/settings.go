package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/starling-registry/starling/pkg/node"
)

// Settings of "starling serve". Each is a flag; the other sources set the flag
// by its name unless a stronger one has set it: command line, then
// environment, then file, then the default.
type settings struct {
	opts      node.Options
	logLevel  string
	logFormat string
	config    string // the file
	check     bool

	groups []group
	source map[string]string // of each flag that is not at its default

	// strange are the STARLING_ variables that name no setting, sorted.
	strange []string
}

// A group of flags that stand together in --help.
type group struct {
	title string
	*pflag.FlagSet
}

// newSettings declares the flags. logFormat is the default of --log-format.
func newSettings(logFormat string) *settings {
	s := &settings{opts: node.DefaultOptions(), source: map[string]string{}}
	add := func(title string) *pflag.FlagSet {
		f := pflag.NewFlagSet(title, pflag.ContinueOnError)
		f.SortFlags = false
		s.groups = append(s.groups, group{title, f})
		return f
	}

	f := add("Flags")
	f.IntVar(&s.opts.Port, "port", s.opts.Port, "HTTP port; the others follow from it: +1000 gRPC for clients, +1001 gRPC between nodes, -1000 Raft, -902 gossip")
	f.IntVar(&s.opts.GRPCPort, "grpc-port", s.opts.GRPCPort, "gRPC port for clients (default port+1000, where the SDKs look for it)")
	f.StringVar(&s.opts.Bind, "bind", s.opts.Bind, "address to listen on; 0.0.0.0: all of this machine")
	f.StringVar(&s.opts.Advertise, "advertise", s.opts.Advertise, "address that others reach this node at (default what --bind says, or else the first address that is not loopback)")
	f.StringVar(&s.opts.DataDir, "data-dir", s.opts.DataDir, "directory for what must survive a restart; one for each node")
	f.StringVar(&s.opts.Name, "name", s.opts.Name, "name of the node, for people (default the host name)")
	f.StringVar(&s.config, "config", "", "YAML file with settings; its keys are these flags without the dashes in front")
	f.Var(&choice{&s.logLevel, logLevels}, "log-level", "debug, info, warn or error")
	f.Var(&choice{&s.logFormat, logFormats}, "log-format", "console or json (default console if stderr is a terminal)")
	f.BoolVar(&s.check, "check", false, "check the settings, print them and where they come from, do not start")
	f.DurationVar(&s.opts.ClockOffset, "clock-offset", 0, "for tests: added to the clock of this machine")
	s.logLevel, s.logFormat = "info", logFormat
	f.Lookup("log-level").DefValue = s.logLevel
	// These defaults are in the text: another machine's would mislead in help
	// that was copied.
	f.Lookup("log-format").DefValue = ""
	f.Lookup("name").DefValue = ""
	f.Lookup("clock-offset").Hidden = true

	f = add("Cluster")
	f.StringSliceVar(&s.opts.Join, "join", nil, "HOST[:PORT],… of other nodes, PORT is their HTTP port (default this node's); a DNS name stands for all of its addresses and is looked up again and again")
	f.IntVar(&s.opts.Expect, "expect", s.opts.Expect, "number of nodes that a new cluster starts with; left out with --join: join one that there is")
	f.StringVar(&s.opts.GossipKeyFile, "gossip-key-file", "", "file with the secrets that the nodes share, one in a line; the first is used, all are accepted; read again when it changes")
	f.BoolVar(&s.opts.InsecureCluster, "insecure-cluster", false, "run a cluster on other addresses than loopback without a secret: whoever reaches its ports can write")
	f.IntVar(&s.opts.PeerPort, "peer-port", 0, "port for gRPC between nodes (default port+1001)")
	f.IntVar(&s.opts.RaftPort, "raft-port", 0, "port for Raft (default port-1000)")
	f.IntVar(&s.opts.GossipPort, "gossip-port", 0, "port for gossip, TCP and UDP (default port-902)")
	f.StringVar(&s.opts.PeerCert, "peer-cert", "", "PEM file: this node's certificate for TLS between nodes, in place of one derived from the secret")
	f.StringVar(&s.opts.PeerKey, "peer-key", "", "PEM file: its key")
	f.StringVar(&s.opts.PeerCA, "peer-ca", "", "PEM file: the authorities of the other nodes' certificates")

	f = add("Timers (defaults work; tests shrink them)")
	for _, t := range s.opts.Timers() {
		f.DurationVar(t.Value, t.Flag, *t.Value, t.Usage)
	}

	f = add("Limits")
	for _, l := range s.opts.Limits() {
		f.IntVar(l.Value, l.Flag, *l.Value, l.Usage)
	}
	return s
}

var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"console", "json"}
)

// completions tells the shell what the flags of c take. Files are its default.
func (s *settings) completions(c *cobra.Command) {
	values := map[string]cobra.CompletionFunc{
		"config":          cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		"data-dir":        cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		"log-level":       cobra.FixedCompletions(logLevels, cobra.ShellCompDirectiveNoFileComp),
		"log-format":      cobra.FixedCompletions(logFormats, cobra.ShellCompDirectiveNoFileComp),
		"gossip-key-file": cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		"peer-cert":       cobra.FixedCompletions([]string{"pem", "crt"}, cobra.ShellCompDirectiveFilterFileExt),
		"peer-key":        cobra.FixedCompletions([]string{"pem", "key"}, cobra.ShellCompDirectiveFilterFileExt),
		"peer-ca":         cobra.FixedCompletions([]string{"pem", "crt"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	err := s.all(func(f *pflag.Flag) error {
		complete := values[f.Name]
		if complete == nil {
			complete = cobra.NoFileCompletions
		}
		return c.RegisterFlagCompletionFunc(f.Name, complete)
	})
	if err != nil {
		panic("BUG: " + err.Error())
	}
}

// all calls fn with each flag, in the order of --help, and stops at the first
// error.
func (s *settings) all(fn func(*pflag.Flag) error) error {
	var err error
	for _, g := range s.groups {
		g.VisitAll(func(f *pflag.Flag) {
			if err == nil {
				err = fn(f)
			}
		})
	}
	return err
}

// lookup finds a flag that the environment may set too; nil: there is none.
func (s *settings) lookup(name string) *pflag.Flag {
	if name == "check" { // an action, not a setting
		return nil
	}
	for _, g := range s.groups {
		if f := g.Lookup(name); f != nil {
			return f
		}
	}
	return nil
}

// notSettings are variables of commands, which a node may find beside its own.
var notSettings = []string{serverVariable, serversVariable, usernameVariable, passwordVariable}

// complete takes what the parsed command line has left open from the
// environment (a list of NAME=value) and the file, and validates the outcome.
func (s *settings) complete(environ []string) error {
	env := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		// Empty is not set, as with ${PORT:-} in a compose file.
		if strings.HasPrefix(name, envPrefix) && value != "" {
			env[name] = value
		}
	}
	s.all(func(f *pflag.Flag) error {
		if f.Changed {
			s.source[f.Name] = "flag"
		}
		return nil
	})
	if err := s.all(func(f *pflag.Flag) error {
		variable := envName(f.Name)
		if v := env[variable]; v != "" && s.lookup(f.Name) != nil {
			delete(env, variable)
			err := s.set(f, v, variable)
			if err != nil && strings.HasPrefix(v, "tcp://") {
				err = fmt.Errorf("%w (Kubernetes sets this variable in every pod beside a service named starling; \"enableServiceLinks: false\" in the pod's spec ends that)", err)
			}
			return err
		}
		return nil
	}); err != nil {
		return err
	}
	for name, value := range env {
		if !slices.Contains(notSettings, name) && !isServiceLink(name, value) {
			s.strange = append(s.strange, name)
		}
	}
	slices.Sort(s.strange)
	if s.config != "" {
		if err := s.readFile(); err != nil {
			return err
		}
	}
	return s.opts.Validate()
}

const envPrefix = "STARLING_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// isServiceLink recognizes the variables that Kubernetes sets in every pod
// beside a service whose name begins with starling.
func isServiceLink(name, value string) bool {
	return strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") ||
		strings.Contains(name, "_PORT_") || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

// set gives a flag the value that a source has for it, unless a stronger
// source came before.
func (s *settings) set(f *pflag.Flag, value, source string) error {
	if f.Changed {
		return nil
	}
	if err := f.Value.Set(value); err != nil {
		return fmt.Errorf("%s: invalid value %q for %s: %w", source, value, f.Name, err)
	}
	f.Changed = true
	s.source[f.Name] = source
	return nil
}

// readFile sets flags by the keys of the configuration file. It goes over the
// nodes of the YAML tree rather than decode into a struct, so that the flags
// stay the only list of settings and every error has its line.
func (s *settings) readFile() error {
	b, err := os.ReadFile(s.config)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(b)))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // empty
	} else if err != nil {
		return fmt.Errorf("%s: %w", s.config, err)
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: must be one YAML document", s.config)
	}
	top := doc.Content[0]
	if top.Tag == "!!null" {
		return nil // only comments
	}
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: must be a list of \"setting: value\"", s.config, top.Line)
	}

	seen := map[string]int{} // key → line
	for pair := range slices.Chunk(top.Content, 2) {
		key, value := pair[0], pair[1]
		at := fmt.Sprintf("%s:%d", s.config, key.Line)
		f := s.lookup(key.Value)
		if f == nil || f.Name == "config" {
			return fmt.Errorf("%s: unknown setting %q", at, key.Value)
		}
		if line := seen[key.Value]; line != 0 {
			return fmt.Errorf("%s: setting %q is there twice, first in line %d", at, key.Value, line)
		}
		seen[key.Value] = key.Line

		var text string
		_, takesList := f.Value.(pflag.SliceValue)
		switch {
		case value.Kind == yaml.ScalarNode && value.Tag != "!!null":
			text = value.Value
		case value.Kind == yaml.SequenceNode && takesList:
			var items []string
			if err := value.Decode(&items); err != nil {
				return fmt.Errorf("%s: setting %q: %w", at, key.Value, err)
			}
			text = strings.Join(items, ",")
		default:
			return fmt.Errorf("%s: setting %q must have one plain value", at, key.Value)
		}
		if err := s.set(f, text, at); err != nil {
			return err
		}
	}
	return nil
}

// write prints the settings as a file that --config reads.
func (s *settings) write(w io.Writer) error {
	top := &yaml.Node{Kind: yaml.MappingNode}
	s.all(func(f *pflag.Flag) error {
		if s.lookup(f.Name) == nil || f.Name == "config" || f.Hidden && !f.Changed {
			return nil
		}
		source, ok := s.source[f.Name]
		if !ok {
			source = "default"
		}
		value := &yaml.Node{LineComment: source}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value.Kind, value.Style = yaml.SequenceNode, yaml.FlowStyle
			for _, item := range list.GetSlice() {
				value.Content = append(value.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: item})
			}
		} else {
			value.Kind, value.Value = yaml.ScalarNode, f.Value.String()
			if f.Value.Type() == "string" {
				value.Tag = "!!str" // so that a name like 1 or no is quoted
			}
		}
		top.Content = append(top.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.Name}, value)
		return nil
	})
	e := yaml.NewEncoder(w)
	if err := e.Encode(top); err != nil {
		return err
	}
	return e.Close()
}

// A choice is a flag with a few values.
type choice struct {
	value   *string
	allowed []string
}

func (c *choice) String() string { return *c.value }
func (c *choice) Type() string   { return "string" }
func (c *choice) Set(v string) error {
	if !slices.Contains(c.allowed, v) {
		return fmt.Errorf("must be one of %s", strings.Join(c.allowed, ", "))
	}
	*c.value = v
	return nil
}
