// Command http is a driver without an SDK: clients of the HTTP API of Nacos as
// those of version 1 are. The protocol is described in test/compat/README.md.
// It needs nothing but Go.
//
// Clients send beats and ask for changes. Each request goes to one of the
// servers at random, and to the next ones if that fails or says nothing for
// three seconds.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

func main() {
	version := flag.String("api", "v1", "version of the API: v1, or v3, the client API of Nacos 3")
	flag.String("dir", "", "ignored: nothing is written")
	flag.Parse()
	api, ok := map[string]api{"v1": v1{}, "v3": v3{}}[*version]
	if !ok {
		fmt.Fprintf(os.Stderr, "there is no API %q\n", *version)
		os.Exit(2)
	}
	out := os.Stdout
	os.Stdout = os.Stderr // whatever prints must not get between the protocol's lines
	lacks := append([]string{"batchRegister", "batchRemove", "watchServices"}, api.lacks()...)
	err := bare.Serve(os.Stdin, out, *version, lacks, func(ctx context.Context, o bare.Options) (bare.Client, error) {
		return connect(ctx, o, api)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}
