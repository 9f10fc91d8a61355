// Package check holds the tests of what deploy has for running nodes: that each
// file says what it is meant to, and that what it starts does start. It is a
// module of its own because Helm, Kubernetes' types and the parsers of Docker and
// Compose must not be dependencies of the program. "make deploy-check" runs it.
//
// Nothing here needs a Kubernetes, a Docker or a systemd that runs: charts and
// kustomizations are rendered by the libraries that helm and kubectl consist of,
// every object is decoded strictly into its type, every command line is given to
// "starling serve --check", and then (as root) the file system that the Dockerfile
// describes is made, and nodes run in it with exactly the command lines, variables
// and probes of the manifests: chroot_test.go. Start reading there.
package check
