#!/usr/bin/env bash
# Breaks a cluster on purpose and judges what its clients saw: chaos.sh --help.
# It builds what it needs (Go 1.26) into bin/ of this checkout, and leaves nothing
# else behind.
#
# STARLING_BIN   the server to break, which also compares nodes that run already
#                (default: the one of this checkout, built)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v go >/dev/null || { echo "chaos.sh needs Go 1.26 or newer to build itself: https://go.dev/doc/install" >&2; exit 1; }

# build FOLDER NAME PACKAGE does what "make build" does, for which make need not be
# there. What is not changed is not built again. The folder of the caller is kept:
# paths of --report and --control are relative to it.
version=$(git -C "$root" describe --tags --always --dirty 2>/dev/null || echo devel)
build() (
	cd "$1"
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=$version" -o "$root/bin/$2" "$3"
)

server=${STARLING_BIN:-}
case " $* " in
*" --bin"* | *" --help "* | *" -h "* | *" --list "*) ;;
*)
	if [ -z "$server" ]; then
		build "$root" starling ./cmd/starling
		server=$root/bin/starling
	fi
	;;
esac
build "$root/deploy/chaos" chaos .
exec "$root/bin/chaos" ${server:+--bin "$server"} --drivers "$root/test/compat" "$@"
