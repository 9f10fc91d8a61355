package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/node"
)

// An offlineLog is what is done to files of the log without a node.
type offlineLog struct {
	inspect func(dataDir string) (node.LogInfo, error)
	recover func(dataDir string) (node.LogInfo, error)
	check   func(backup io.Reader) (node.BackupInfo, error)
}

func recoverCommand(p *process) *cobra.Command {
	var dir string
	yes, asJSON := false, false
	c := &cobra.Command{
		Use:   "recover --data-dir DIR",
		Short: "Make this node's log the cluster's, after the quorum was lost for good",
		Long: `When a majority of the voters of the log is gone and will never come back (disks lost,
machines gone), nothing can be written to the log any more, and no node may decide that
by itself. This does it by hand: the log in DIR becomes that of the cluster, and its
node the only voter. The other nodes take it from there by themselves.

Writes that the lost nodes had and this one had not are lost; no other are. If one of
the lost nodes can still be started, start it instead. Never recover two nodes: the log
of one of them would be thrown away when they meet.

  1. Stop all nodes that are left, or leave them stopped.
  2. On each, run it without --yes: that only shows what there is. The one with the
     highest last term, and of these with the highest last entry, has the most.
  3. On that one run it with --yes, then start it as always.
  4. Start the others as always. They notice that their log is an older one, put it
     aside and take the new one.

starling raft then shows a leader. The lost nodes are no voters any more; new ones join
as always. A lost node that does come back throws away its log in the same way.

Exit status 0: done. 1: not done, without --yes too.`,
		Example: `  starling recover --data-dir /var/lib/starling         # what is there? Changes nothing
  starling recover --data-dir /var/lib/starling --yes`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				for _, kv := range p.env {
					if v, ok := strings.CutPrefix(kv, envName("data-dir")+"="); ok { // the last one counts
						dir = v
					}
				}
			}
			if dir == "" {
				return errors.New("--data-dir is missing: the data directory of the node that is to have the cluster's log")
			}
			info, err := p.log.inspect(dir)
			if err != nil {
				return failed(err)
			}
			if yes && info.LastIndex > 0 {
				if info, err = p.log.recover(dir); err != nil {
					return failed(err)
				}
			}
			if asJSON {
				err = writeJSON(p.stdout, info)
			} else {
				err = writeLogInfo(p.stdout, info)
			}
			switch {
			case err != nil:
				return failed(err)
			case info.LastIndex == 0:
				return failed(errors.New("there is no log in " + dir + ": nothing to recover, and nothing was changed"))
			case !yes:
				return failed(errors.New("nothing was changed; --yes makes this the log of the cluster"))
			}
			if !asJSON {
				fmt.Fprintln(p.stdout, "This is the log of the cluster now. Start this node, then the others.")
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&dir, "data-dir", "", "data directory of the node, which must not run (default $STARLING_DATA_DIR)")
	f.BoolVar(&yes, "yes", false, "do it")
	f.BoolVar(&asJSON, "json", false, "print JSON instead of a table")
	if err := c.RegisterFlagCompletionFunc("data-dir", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)); err != nil {
		panic("BUG: " + err.Error())
	}
	return c
}

func writeLogInfo(w io.Writer, info node.LogInfo) error {
	t := newTable(w)
	t.row("node", info.Node)
	t.row("cluster", info.Cluster)
	t.row("last term", strconv.FormatUint(info.LastTerm, 10))
	t.row("last entry", strconv.FormatUint(info.LastIndex, 10))
	t.row("generation", strconv.FormatUint(info.Generation, 10))
	t.row("holds", rowsText(info.Rows))
	t.row("on disk", bytesText(info.LogBytes))
	for _, s := range info.Servers {
		votes := "follows"
		if s.Voter {
			votes = "votes"
		}
		if s.ID == info.Node {
			votes += ", this node"
		}
		t.row("server", s.ID+" "+votes)
	}
	return t.Flush()
}
