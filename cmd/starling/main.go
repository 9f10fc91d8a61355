// Command starling is a service registry that Nacos clients use as if it were
// Nacos.
//
// This package is the command line and holds no logic of the server:
// settings.go turns flags, environment and file into [node.Options], serve.go
// runs a node until a signal comes; ready.go, members.go, cluster.go, verify.go,
// services.go, edit.go, namespaces.go, history.go, subscribers.go, drain.go,
// raft.go and backup.go ask running nodes over their native API, with what they
// share in remote.go and watch.go; register.go, get.go and follow.go are clients
// as applications are, on pkg/client (client.go); recover.go works on the files of a stopped
// one; bench.go measures servers as a client. Start reading at run.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/starling-registry/starling/pkg/node"
)

// Exit statuses. Scripts rely on them.
const (
	exitOK     = 0
	exitFailed = 1 // the reason is on stderr
	exitUsage  = 2 // a flag, a variable or the file is wrong
)

// A process is what the command line takes from its surroundings; tests bring
// their own.
type process struct {
	args           []string // without the program's name
	env            []string // NAME=value
	stdout, stderr io.Writer
	notify         func(chan<- os.Signal) // subscribes to requests to stop
	log            offlineLog
}

func main() {
	os.Exit(run(&process{
		args:   os.Args[1:],
		env:    os.Environ(),
		stdout: os.Stdout,
		stderr: os.Stderr,
		notify: func(c chan<- os.Signal) { signal.Notify(c, os.Interrupt, syscall.SIGTERM) },
		log:    offlineLog{inspect: node.InspectLog, recover: node.RecoverLog, check: node.CheckBackup},
	}))
}

// errFailed marks an error of a command that was used rightly and failed. All
// others are wrong usage: cobra has several kinds and no type for them.
type errFailed struct{ error }

func run(p *process) (status int) {
	root := &cobra.Command{
		Use:   "starling",
		Short: "A service registry for Nacos clients, in one binary",
		Long: `Starling is a service registry. Nacos 2.x and 3.x naming clients use it as if it
were Nacos: same ports, same gRPC and HTTP protocols. One binary, nothing to
install beside it.

A node opens two ports: HTTP on 8848 (--port) and gRPC for clients on 9848
(always the HTTP port + 1000, as the SDKs expect). Both are on 127.0.0.1 until
--bind says otherwise. What it must remember is in ./starling-data (--data-dir).`,
		Example: `  starling serve                              # a node on this machine
  starling serve --bind 0.0.0.0 --port 8848   # reachable from others
  starling serve --config node.yaml --check   # what would it run with?

Then, in two other terminals, follow a service, and register an instance:
  starling watch hello
  starling register hello 10.0.0.1:8080       # until Ctrl-C
An application does that with an SDK of Nacos: point its server address
(spring.cloud.nacos.discovery.server-addr) at 127.0.0.1:8848.

Which instances has it, why did one vanish, and how are the nodes?
  starling instances hello
  starling history hello
  starling cluster`,
		Version:       versionString(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(p), servicesCommand(p), instancesCommand(p), subscribersCommand(p), historyCommand(p),
		enableCommand(p), disableCommand(p), weightCommand(p), metadataCommand(p), evictCommand(p), editsCommand(p), namespacesCommand(p),
		readyCommand(p), membersCommand(p), clusterCommand(p), verifyCommand(p), drainCommand(p),
		raftCommand(p), backupCommand(p), restoreCommand(p), recoverCommand(p), registerCommand(p), getCommand(p), watchCommand(p), benchCommand(p), versionCommand())
	root.SetArgs(p.args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)

	// Without RunE cobra prints the help of "completion" for any argument and
	// reports success; with it, unknown shells are refused.
	root.InitDefaultCompletionCmd(p.args...)
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}

	root.InitDefaultHelpCmd()
	plainSwitches(root)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	if failed, ok := errors.AsType[errFailed](err); ok {
		fmt.Fprintf(p.stderr, "starling: %v\n", failed)
		return exitFailed
	}
	fmt.Fprintf(p.stderr, "starling: %v\nSee '%s --help'.\n", err, cmd.CommandPath())
	return exitUsage
}

// plainSwitches makes --help show a switch as --check rather than
// --check[=true|false].
func plainSwitches(c *cobra.Command) {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			f.Value = plainSwitch{f.Value}
		}
	})
	for _, sub := range c.Commands() {
		plainSwitches(sub)
	}
}

// A plainSwitch has all methods of a flag's value but IsBoolFlag, which is
// what brings the noise.
type plainSwitch struct{ pflag.Value }
