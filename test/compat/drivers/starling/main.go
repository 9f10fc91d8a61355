// Command starling is a driver of Starling's own client for Go, pkg/client: many
// clients in one process. The protocol is described in test/compat/README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

func main() {
	dir := flag.String("dir", "", "where the clients keep their lists; \"\": nowhere")
	flag.Parse()
	out := os.Stdout
	os.Stdout = os.Stderr // whatever prints must not get between the protocol's lines
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	_, version, _ := strings.Cut(wire.Version, ":")
	err := bare.Serve(os.Stdin, out, version, nil, func(ctx context.Context, o bare.Options) (bare.Client, error) {
		return connect(ctx, o, *dir)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}
