#!/usr/bin/env bash
# Breaks a cluster on purpose and judges what its clients saw: chaos.sh --help.
# It builds what it needs (Go 1.26) into bin/ of this checkout, and leaves nothing
# else behind.
#
# STARLING_BIN   the server to break (default: the one of this checkout, built)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v go >/dev/null || { echo "chaos.sh needs Go 1.26 or newer to build itself: https://go.dev/doc/install" >&2; exit 1; }

server=${STARLING_BIN:-}
case " $* " in
*" --servers"* | *" --bin"* | *" --help "* | *" -h "* | *" --list "*) ;;
*)
	if [ -z "$server" ]; then
		make -s -C "$root" build
		server=$root/bin/starling
	fi
	;;
esac
# What is not changed is not built again. The folder of the caller is kept: paths
# of --report and --control are relative to it.
(cd "$root/deploy/chaos" && CGO_ENABLED=0 go build -trimpath -o "$root/bin/chaos" .)
exec "$root/bin/chaos" ${server:+--bin "$server"} --drivers "$root/test/compat" "$@"
