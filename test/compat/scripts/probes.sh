#!/usr/bin/env bash
# What compose files, Kubernetes manifests, load balancers and SDKs ask to know whether a node is up.
. "$(dirname "$0")/lib.sh"

for _ in "${nodes[@]}"; do # one path, each node
	call GET /v1/console/health/liveness
	is OK
done
for _ in "${nodes[@]}"; do
	call GET /v1/console/health/readiness
	is OK
done
for _ in "${nodes[@]}"; do
	call GET /v2/console/health/readiness
	is '{"code":0,"message":"success","data":"ok"}'
done
for _ in "${nodes[@]}"; do
	call GET /v3/admin/core/state/readiness # 3.x
	is '{"code":0,"message":"success","data":"ok"}'
done
for _ in "${nodes[@]}"; do
	call GET /v3/admin/core/state/liveness # the Java SDK of 3.x
	is '{"code":0,"message":"success","data":"ok"}'
done
for _ in "${nodes[@]}"; do
	call GET /v1/ns/operator/metrics # SDKs
	is '{"status":"UP"}'
done
for _ in "${nodes[@]}"; do
	call GET /actuator/health
	has '"status":"UP"'
done
for _ in "${nodes[@]}"; do
	call GET / # load balancers
	[ "$status" = 200 ] || fail "want status 200"
done
for _ in "${nodes[@]}"; do
	curl -fsS --max-time 5 -o /dev/null "http://${nodes[turn++ % ${#nodes[@]}]}/nacos/v1/console/health/readiness" || fail "curl -f ended with $?" # as in a healthcheck of compose
done
