#!/usr/bin/env bash
# Runs three nodes on this machine until Ctrl-C, with their logs side by side:
# a place to try things out and to break them. "make cluster" builds and calls it.
#
# usage: cluster.sh [BINARY [DIRECTORY]]
# In the directory the nodes keep their data and logs; it may be deleted when
# they do not run.

set -uo pipefail
# Job control gives each node a process group of its own, so that Ctrl-C reaches
# this script only: a node that gets a signal twice ends at once.
set -m

bin=${1:-bin/starling}
dir=${2:-starling-data/cluster}
names=(a b c)
ports=(8848 8858 8868) # these and the four that follow from each do not collide
join=127.0.0.1:8848,127.0.0.1:8858,127.0.0.1:8868
patience=30 # seconds to become ready, and to end

bold='' plain='' colours=('' '' '')
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$'\e[1m' plain=$'\e[0m' colours=($'\e[36m' $'\e[33m' $'\e[35m')
fi
pids=() gone=('' '' '')

say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }

# Connecting, not binding, tells whether a port is taken: nothing more is at
# hand in a shell.
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Sets "line" to the command line of node number $1.
line=()
command_of() {
	line=("$bin" serve --name "${names[$1]}" --port "${ports[$1]}" --data-dir "$dir/${names[$1]}/data"
		--join "$join" --expect 3 --log-format console)
}

start() {
	mkdir -p "$dir/${names[$1]}" || exit 1
	command_of "$1"
	# What prints the log outlives Ctrl-C, so that the end is seen too.
	"${line[@]}" > >(
		trap '' INT TERM
		while IFS= read -r text; do
			printf '%s%s |%s %s\n' "${colours[$1]}" "${names[$1]}" "$plain" "$text"
			printf '%s\n' "$text" >&3
		done 3>>"$dir/${names[$1]}/log"
	) 2>&1 </dev/null &
	pids[$1]=$!
}

alive() { [ -z "${gone[$1]}" ] && kill -0 "${pids[$1]}" 2>/dev/null; }

# What node number $1 says of itself: "ready", or what it waits for.
readiness() {
	local status='' text body=''
	{
		exec 3<>"/dev/tcp/127.0.0.1/${ports[$1]}" || return
		printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
		read -r -t 2 _ status _ <&3
		while read -r -t 2 text <&3 || [ -n "$text" ]; do body=$text; done
		exec 3>&-
	} 2>/dev/null
	if [ "$status" = 200 ]; then echo ready; else echo "$body"; fi
}

# Notices a node that ended by itself; the others go on.
look() {
	local i
	for i in 0 1 2; do
		[ -z "${gone[$i]}" ] || continue
		if ! kill -0 "${pids[$i]}" 2>/dev/null; then
			wait "${pids[$i]}"
			gone[i]=$?
			say "node ${names[$i]} has ended with status ${gone[$i]}; the others go on. To start it again, in another terminal:"
			command_of "$i"
			say "  ${line[*]}"
		fi
	done
}

left() {
	local i n=0
	for i in 0 1 2; do if alive "$i"; then n=$((n + 1)); fi; done
	echo "$n"
}

stop() {
	trap : INT TERM HUP # handled below
	local i second waited=0
	echo
	say "ending the nodes; once more Ctrl-C ends them at once"
	for i in 0 1 2; do if alive "$i"; then kill -TERM "${pids[$i]}" 2>/dev/null; fi; done
	while [ "$(left)" != 0 ] && [ $waited -lt $((patience * 5)) ]; do
		second=''
		trap 'second=yes' INT TERM HUP
		sleep 0.2
		waited=$((waited + 1))
		if [ -n "$second" ]; then
			for i in 0 1 2; do if alive "$i"; then kill -TERM "${pids[$i]}" 2>/dev/null; fi; done
		fi
	done
	for i in 0 1 2; do
		if alive "$i"; then
			say "node ${names[$i]} does not end and is killed"
			kill -KILL "${pids[$i]}" 2>/dev/null
		fi
	done
	local status=${1:-0}
	for i in 0 1 2; do
		[ -z "${gone[$i]}" ] || continue
		wait "${pids[$i]}" 2>/dev/null || { say "node ${names[$i]} ended with status $?"; status=1; }
	done
	exit "$status"
}

[ -x "$bin" ] || { echo "there is no $bin: make build" >&2; exit 1; }
for port in "${ports[@]}"; do
	for p in $port $((port + 1000)) $((port + 1001)) $((port - 1000)) $((port - 902)); do
		if taken "$p"; then
			echo "port $p of this machine is in use; the cluster needs it" >&2
			exit 1
		fi
	done
done

for i in 0 1 2; do start $i; done
exec 2>/dev/null # where bash reports how jobs end, which is said in better words below
trap stop INT TERM HUP

begun=$SECONDS said=''
while :; do
	look
	waits=''
	for i in 0 1 2; do
		if ! alive $i; then
			waits="$waits; ${names[$i]} has ended"
			continue
		fi
		state=$(readiness $i)
		[ "$state" = ready ] || waits="$waits; ${names[$i]}: ${state:-no answer yet}"
	done
	[ -n "$waits" ] || break
	if [ "$waits" != "$said" ]; then
		say "waiting:${waits#;}"
		said=$waits
	fi
	if [ $((SECONDS - begun)) -ge $patience ] || [ "$(left)" = 0 ]; then
		say "not all nodes have become ready; their logs: $dir/*/log"
		stop 1
	fi
	sleep 0.2
done

cat <<END
$bold
Three nodes are ready: a ${ports[0]} (process ${pids[0]}), b ${ports[1]} (${pids[1]}), c ${ports[2]} (${pids[2]}).$plain
  for SDKs         $join
  Spring           export SPRING_CLOUD_NACOS_DISCOVERY_SERVER_ADDR=$join
  register on a    curl -X POST 'http://127.0.0.1:${ports[0]}/nacos/v1/ns/instance?serviceName=order&ip=10.0.0.1&port=8080'
  (without beats   it is unhealthy after 15 s and gone after 30)
  ask c            curl 'http://127.0.0.1:${ports[2]}/nacos/v1/ns/instance/list?serviceName=order'
  the nodes        $bin members
  replication      $bin cluster
  do they agree    $bin verify --servers $join
  break it         kill -9 ${pids[1]}   or   kill -STOP ${pids[1]}; sleep 10; kill -CONT ${pids[1]}
  data and logs    $dir
${bold}Ctrl-C ends them.$plain

END

while [ "$(left)" != 0 ]; do
	sleep 0.5
	look
done
say "all nodes have ended"
exit 1
