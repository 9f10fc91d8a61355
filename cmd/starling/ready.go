package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

const (
	readyPoll    = 200 * time.Millisecond
	readyTimeout = 2 * time.Second // of one question: a node that is well answers in milliseconds
)

func readyCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	live := false
	var within time.Duration
	c := &cobra.Command{
		Use:   "ready",
		Short: "Tell whether a node takes clients",
		Long: `Ask the node of --server whether it takes clients, as GET /readyz does: the health
check of a container that has neither a shell nor curl, and what a script waits for
between the restarts of two nodes. A node that catches up, drains or stops is not ready.

With --live the question is only whether the process answers. A supervisor that ends
what fails its check must ask that: a node that is not ready becomes ready by itself,
and one that is started anew begins to catch up from the beginning.

Exit status 0: yes. 1: no, and why.`,
		Example: `  starling ready
  starling ready --within 1m --server 10.0.0.2   # wait for it
  starling ready --live`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if within < 0 {
				return errors.New("--within must not be negative")
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			question, status := client.Ready, "ready"
			if live {
				question, status = client.Alive, "alive"
			}
			if err := askUntil(c.Context(), within, question); err != nil {
				if api.CodeOf(err) == api.CodeNotReady {
					err = fmt.Errorf("%s is not ready: %w", client.Server(), err)
				}
				return failed(err)
			}
			if r.json {
				return failed(writeJSON(p.stdout, map[string]string{"status": status}))
			}
			fmt.Fprintln(p.stdout, status)
			return nil
		},
	}
	r.flags(c, false, false)
	c.Flags().BoolVar(&live, "live", false, "only ask whether the process answers")
	c.Flags().DurationVar(&within, "within", 0, "ask again for so long until the answer is yes")
	noFiles(c)
	return c
}

// askUntil asks until there is no error, and returns the last one when the time
// is over.
func askUntil(ctx context.Context, within time.Duration, question func(context.Context) error) error {
	end := time.Now().Add(within)
	for {
		one, cancel := context.WithTimeout(ctx, readyTimeout)
		err := question(one)
		cancel()
		if err == nil || time.Until(end) < readyPoll {
			return err
		}
		select {
		case <-time.After(readyPoll):
		case <-ctx.Done():
			return err
		}
	}
}
