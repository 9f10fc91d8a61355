// Command bench compares a node with a server that does nothing but gRPC, and
// writes docs/BENCHMARKS.md; and it measures a cluster of three nodes, for
// docs/BENCHMARKS-cluster.md.
//
//	bench run     start both, one after the other, several times; write the file
//	bench cluster start three nodes; write the other file
//	bench echo    that server
//	bench profile CPU profiles of a node under load
//
// The echo server answers every request with bytes that were made before, of
// the size that a node's answer has, over the same codec: what is left is the
// price of grpc-go, the kernel and the client. Figures of a node are given as
// multiples of it, because milliseconds say more about a machine than about a
// program.
//
// Start reading at run (run.go) and runCluster (cluster.go).
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 4 && os.Args[1] == "echo":
		err = echo(os.Args[2], os.Args[3])
	case len(os.Args) == 4 && os.Args[1] == "profile":
		err = profile(os.Args[2], os.Args[3])
	case len(os.Args) >= 2 && os.Args[1] == "run":
		err = run(os.Args[2:])
	case len(os.Args) >= 2 && os.Args[1] == "cluster":
		err = runCluster(os.Args[2:])
	default:
		fmt.Fprintln(os.Stderr, "usage: bench run [flags] | bench cluster [flags] | bench echo HTTP-ADDRESS GRPC-ADDRESS | bench profile STARLING DIRECTORY")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
