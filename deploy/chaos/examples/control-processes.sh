#!/usr/bin/env bash
# Kills, freezes and starts servers that run as processes of this machine, for
# the chaos program: --control deploy/chaos/examples/control-processes.sh
set -euo pipefail

usage() {
	cat <<'END'
usage: control-processes.sh kill|stop|continue|start|terminate HOST:PORT

  kill       ends the process at once
  stop       freezes it, continue lets it go on
  terminate  asks it to end and waits until it has
  start      starts it again; it returns while the server is still starting

Settings, from the environment:
  CONTROL_DIR    folder with a file HOST:PORT.pid for each server, which has its
                 process id and is kept up to date; the log of what is started
                 here is HOST:PORT.log
  CONTROL_START  command line for "start"; it finds the address in $NODE, $HOST
                 and $PORT. It must become the server: exec, no daemon
  CONTROL_WAIT   seconds for "terminate", default 60

All servers that are down are started the same way, so this starts a cluster:

  export CONTROL_DIR=/tmp/nodes
  export CONTROL_START='bin/starling serve --port $PORT --bind $HOST
    --data-dir $CONTROL_DIR/$PORT --expect 3
    --join 127.0.0.1:8848,127.0.0.1:8858,127.0.0.1:8868'
  for port in 8848 8858 8868; do control-processes.sh start 127.0.0.1:$port; done
END
}

fail() {
	echo "control-processes.sh: $*" >&2
	exit 1
}

case ${1-} in
--help | -h)
	usage
	exit
	;;
esac
if [ $# != 2 ] || [ "${2%:*}" = "$2" ]; then
	usage >&2
	exit 2
fi
action=$1
: "${CONTROL_DIR:?names the folder with the process ids, see --help}"
export CONTROL_DIR NODE=$2 HOST=${2%:*} PORT=${2##*:}
file=$CONTROL_DIR/$NODE.pid

# What ps says of the process: a letter, Z for one that has ended.
state() { ps -o stat= -p "$pid" 2>/dev/null || true; }

gone() { case $(state) in '' | Z*) true ;; *) false ;; esac }

frozen() { case $(state) in T*) true ;; *) false ;; esac }

thawed() { ! frozen; }

# Waits up to $1 seconds until the rest of the arguments holds.
within() {
	local tries=$(($1 * 20))
	shift
	until "$@"; do
		[ $tries -gt 0 ] || return 1
		tries=$((tries - 1))
		sleep 0.05
	done
}

pid=$(cat "$file" 2>/dev/null || true)
if [ "$action" = start ]; then
	: "${CONTROL_START:?is the command that starts a server, see --help}"
	if [ -n "$pid" ] && ! gone; then fail "$NODE runs already, as process $pid"; fi
	mkdir -p "$CONTROL_DIR"
	# In a session of its own: Ctrl-C is not for the server.
	setsid bash -c "exec ${CONTROL_START//$'\n'/ }" </dev/null >>"$CONTROL_DIR/$NODE.log" 2>&1 &
	pid=$!
	echo "$pid" >"$file"
	sleep 0.2
	if gone; then fail "$NODE ended at once, see $CONTROL_DIR/$NODE.log"; fi
	exit
fi

[ -n "$pid" ] || fail "there is no process id in $file"
if gone; then fail "$NODE does not run: process $pid is gone"; fi
case $action in
kill)
	kill -KILL "$pid"
	within 10 gone || fail "$NODE (process $pid) was killed and is still there"
	;;
stop)
	kill -STOP "$pid"
	within 10 frozen || fail "$NODE (process $pid) does not stand still"
	;;
continue)
	kill -CONT "$pid"
	within 10 thawed || fail "$NODE (process $pid) does not go on"
	;;
terminate)
	kill -TERM "$pid"
	within "${CONTROL_WAIT:-60}" gone || fail "$NODE (process $pid) has not ended after ${CONTROL_WAIT:-60} s"
	;;
*)
	usage >&2
	exit 2
	;;
esac
