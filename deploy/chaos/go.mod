module github.com/starling-registry/starling/deploy/chaos

go 1.26.0

require (
	github.com/hanwen/go-fuse/v2 v2.12.1
	github.com/miekg/dns v1.1.73
	github.com/starling-registry/starling v0.0.0
	github.com/starling-registry/starling/test/compat v0.0.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
)

require github.com/spf13/pflag v1.1.0

require golang.org/x/net v0.60.0

replace (
	github.com/starling-registry/starling => ../../
	github.com/starling-registry/starling/test/compat => ../../test/compat
)
