// Command grpc is a driver without an SDK: clients of the gRPC protocol of
// Nacos as those of version 2 and 3 are, on the core of pkg/client. The
// protocol of the driver is described in test/compat/README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

func main() {
	flag.String("dir", "", "ignored: nothing is written")
	flag.Parse()
	out := os.Stdout
	os.Stdout = os.Stderr // whatever prints must not get between the protocol's lines
	err := bare.Serve(os.Stdin, out, "v2", []string{"watchServices"}, func(ctx context.Context, o bare.Options) (bare.Client, error) {
		return connect(ctx, o)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}
