#!/usr/bin/env bash
# Kills, freezes and starts servers that are systemd units of other machines,
# for the chaos program: --control deploy/chaos/examples/control-systemd.sh
set -euo pipefail

usage() {
	cat <<'END'
usage: control-systemd.sh kill|stop|continue|start|terminate HOST:PORT

  kill       ends all processes of the unit at once, and keeps it from being
             started again by Restart=
  stop       freezes them, continue lets them go on
  terminate  stops the unit and waits until it has ended
  start      starts the unit

HOST is logged in to with ssh, without a password.

Settings, from the environment:
  CONTROL_UNIT  the unit, default starling; PORT in it is replaced: starling@PORT
  CONTROL_SSH   default "ssh -o BatchMode=yes -o ConnectTimeout=5"
  CONTROL_SUDO  default "sudo -n"; empty if the user may use systemctl as it is

A unit with a watchdog, or a supervisor beside it, may end a frozen server.
END
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
host=${2%:*} port=${2##*:}
host=${host#[} host=${host%]} # of IPv6
unit=${CONTROL_UNIT:-starling}
unit=${unit//PORT/$port}
read -ra ssh <<<"${CONTROL_SSH:-ssh -o BatchMode=yes -o ConnectTimeout=5}"
systemctl="${CONTROL_SUDO-sudo -n} systemctl"

case $1 in
kill) command="$systemctl kill --signal=KILL $unit && $systemctl stop $unit" ;;
stop) command="$systemctl kill --signal=STOP $unit" ;;
continue) command="$systemctl kill --signal=CONT $unit" ;;
terminate) command="$systemctl stop $unit" ;;
# What failed too often within a short time is not started otherwise.
start) command="$systemctl reset-failed $unit; $systemctl start $unit" ;;
*)
	usage >&2
	exit 2
	;;
esac
exec "${ssh[@]}" "$host" "$command"
