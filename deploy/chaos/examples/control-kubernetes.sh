#!/usr/bin/env bash
# Kills and freezes servers that are pods of a StatefulSet, for the chaos
# program: --control deploy/chaos/examples/control-kubernetes.sh
set -euo pipefail

usage() {
	cat <<'END'
usage: control-kubernetes.sh kill|stop|continue|start|terminate POD[.SERVICE…]:PORT

  kill       deletes the pod without a grace period
  terminate  deletes the pod as an upgrade does, with preStop and SIGTERM, and waits for its end
  start      waits until the pod is ready: Kubernetes starts it by itself, also
             without being asked, so nothing keeps a pod down between kill and start
  stop       freezes the server in the pod, continue lets it go on

The first word of the host is the pod: give the program the names of the
headless service, starling-0.starling:8848. It must run where they resolve.

"stop" and "continue" need a pod with shareProcessNamespace: true (a process that is
number 1 of its namespace takes no such signal from within), and add a container
to it that ends at once. A liveness probe restarts a server that stands still for
longer than it allows: the chart's after periodSeconds x failureThreshold.

Settings, from the environment:
  CONTROL_NAMESPACE  default: that of the context
  CONTROL_PROCESS    name of the server's process, default starling
  CONTROL_IMAGE      image with a shell, kill and pidof, default busybox
  CONTROL_WAIT       seconds for "start" and "terminate", default 120
  KUBECTL            default kubectl
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
pod=${2%%[.:]*}
wait=${CONTROL_WAIT:-120}
read -ra kubectl <<<"${KUBECTL:-kubectl}"
[ -z "${CONTROL_NAMESPACE-}" ] || kubectl+=(--namespace "$CONTROL_NAMESPACE")

send() {
	exec "${kubectl[@]}" debug "$pod" --quiet --stdin --image="${CONTROL_IMAGE:-busybox}" --profile=general -- \
		sh -c "kill -$1 \$(pidof ${CONTROL_PROCESS:-starling})" </dev/null
}

case $1 in
kill) exec "${kubectl[@]}" delete pod "$pod" --grace-period=0 --force ;;
terminate) exec "${kubectl[@]}" delete pod "$pod" --wait --timeout="${wait}s" ;;
stop) send STOP ;;
continue) send CONT ;;
start)
	# A pod that is not made yet is an error for "wait".
	for ((end = SECONDS + wait; SECONDS < end; )); do
		"${kubectl[@]}" wait pod "$pod" --for=condition=Ready --timeout="$((end - SECONDS))s" 2>/dev/null && exit
		sleep 1
	done
	echo "control-kubernetes.sh: $pod is not ready after $wait s" >&2
	exit 1
	;;
*)
	usage >&2
	exit 2
	;;
esac
