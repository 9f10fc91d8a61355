#!/usr/bin/env bash
# Kills, freezes and starts nodes of r-nacos, another server that Nacos clients
# can use, so that the chaos program can be run against it for comparison.
# cargo install rnacos --locked   builds it from crates.io.
set -euo pipefail

usage() {
	cat <<'END'
usage: control-rnacos.sh up HOST:PORT,HOST:PORT,…
       control-rnacos.sh down
       control-rnacos.sh kill|stop|continue|start|terminate HOST:PORT

"up" starts a new cluster of these nodes, the first of which leads, and waits
until all of them say so; "down" ends the nodes and removes their data. The rest is as
control-processes.sh has it. gRPC is at PORT + 1000, as clients expect.

Settings, from the environment:
  CONTROL_DIR   folder for data, logs and process ids
  RNACOS        the program, default rnacos (in the path)

  export CONTROL_DIR=/tmp/rnacos
  nodes=127.0.0.1:18848,127.0.0.1:18858,127.0.0.1:18868
  deploy/chaos/examples/control-rnacos.sh up $nodes
  deploy/chaos/chaos.sh --servers $nodes --control deploy/chaos/examples/control-rnacos.sh …
  deploy/chaos/examples/control-rnacos.sh down
END
}

fail() {
	echo "control-rnacos.sh: $*" >&2
	exit 1
}

here=$(dirname "${BASH_SOURCE[0]}")
export RNACOS=${RNACOS:-rnacos}

# Started by control-processes.sh, for the node in $HOST:$PORT. What a node has
# joined it knows from its data after that.
run() {
	local all first id=1 node
	all=$(cat "$CONTROL_DIR/nodes")
	first=${all%%,*}
	for node in ${all//,/ }; do
		[ "$node" != "${NODE:?}" ] || break
		id=$((id + 1))
	done
	if [ "$id" = 1 ]; then
		export RNACOS_RAFT_AUTO_INIT=true
	else
		export RNACOS_RAFT_JOIN_ADDR=${first%:*}:$((${first##*:} + 1000))
	fi
	export RNACOS_RAFT_NODE_ID=$id RNACOS_RAFT_NODE_ADDR=$HOST:$((PORT + 1000))
	export RNACOS_SDK_HOST=$HOST RNACOS_HTTP_PORT=$PORT RNACOS_GRPC_PORT=$((PORT + 1000))
	export RNACOS_HTTP_CONSOLE_PORT=0 RNACOS_DATA_DIR=$CONTROL_DIR/$PORT RUST_LOG=${RUST_LOG:-warn}
	mkdir -p "$RNACOS_DATA_DIR"
	exec "$RNACOS"
}

# Whether the node says that a cluster of $2 is led by somebody.
joined() {
	local status members
	status=$(curl -sf -m 2 "http://$1/nacos/v1/raft/metrics") || return 1
	members=${status##*\"members\":[}
	members=${members%%]*}
	[[ $status != *'"current_leader":null'* ]] && [ "$(tr -cd , <<<"$members" | wc -c)" = $(($2 - 1)) ]
}

up() {
	local node count tries=100
	command -v "$RNACOS" >/dev/null || fail "there is no $RNACOS: cargo install rnacos --locked"
	[ ! -e "$CONTROL_DIR/nodes" ] || fail "$CONTROL_DIR is in use: down"
	for node in ${1//,/ }; do
		if (exec 3<>"/dev/tcp/${node%:*}/${node##*:}") 2>/dev/null; then fail "$node is in use"; fi
	done
	mkdir -p "$CONTROL_DIR"
	echo "$1" >"$CONTROL_DIR/nodes"
	count=$(tr , '\n' <<<"$1" | wc -l)
	for node in ${1//,/ }; do
		"$0" start "$node"
		sleep 1 # one that joins needs somebody who leads
	done
	for node in ${1//,/ }; do
		until joined "$node" "$count"; do
			[ $tries -gt 0 ] || fail "$node has not joined, see $CONTROL_DIR/$node.log"
			tries=$((tries - 1))
			sleep 0.2
		done
	done
}

down() {
	local node all
	[ -e "$CONTROL_DIR/nodes" ] || return 0
	all=$(cat "$CONTROL_DIR/nodes")
	for node in ${all//,/ }; do
		"$0" kill "$node" 2>/dev/null || true # gone already
		rm -rf -- "${CONTROL_DIR:?}/${node##*:}" "$CONTROL_DIR/$node.pid" "$CONTROL_DIR/$node.log"
	done
	rm "$CONTROL_DIR/nodes"
}

case ${1-} in
--help | -h | '')
	usage
	exit
	;;
esac
: "${CONTROL_DIR:?is the folder for data and process ids, see --help}"
export CONTROL_DIR
case $1:$# in
up:2) up "$2" ;;
down:1) down ;;
run:1) run ;;
*:2)
	CONTROL_START="'$0' run" exec "$here/control-processes.sh" "$@"
	;;
*)
	usage >&2
	exit 2
	;;
esac
