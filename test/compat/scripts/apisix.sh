#!/usr/bin/env bash
# What APISIX sends to find the nodes of its upstreams, and what it reads of the answers
# (http-api §14): a login with an empty POST, then a list for each service with the token and, if keys
# are configured, a signature.
. "$(dirname "$0")/lib.sh"

accept=(-H 'Accept: application/json')
v1=/v1 # its setting "prefix" is /nacos/v1/
service=APISIX-NACOS

ok POST $v1/ns/instance -d "serviceName=$service&ip=10.1.0.1&port=1980&weight=2&ephemeral=false"
ok POST $v1/ns/instance -d "serviceName=$service&ip=10.1.0.2&port=1980&ephemeral=false"
ok PUT $v1/ns/cluster -d "serviceName=$service&clusterName=DEFAULT&checkPort=80&useInstancePort4Check=true" --data-urlencode 'healthChecker={"type":"NONE"}'
# In a namespace and a group; for an upstream of gRPC.
ok POST $v1/ns/instance -d "serviceName=$service&groupName=test_group&namespaceId=test_ns&ip=10.1.0.3&port=1981" \
	--data-urlencode 'metadata={"gRPC_port":"9090"}'
ok POST $v1/ns/instance -d "serviceName=$service&groupName=test_group&namespaceId=test_ns&ip=10.1.0.4&port=1981&healthy=false"

# It stops a refresh whose login fails.
call POST "$v1/auth/login?username=nacos&password=nacos" "${accept[@]}" -H 'Content-Length: 0'
has '"accessToken":"'
token=$(sed -n 's/.*"accessToken":"\([^"]*\)".*/\1/p' <<<"$body")
list="$v1/ns/instance/list?healthyOnly=true&serviceName=$service&accessToken=$token"

shows "$list&namespaceId=public&groupName=DEFAULT_GROUP" are $'10.1.0.1 1980 2.0\n10.1.0.2 1980 1.0' "${accept[@]}"
shows "$list&namespaceId=test_ns&groupName=test_group" are '10.1.0.3 1981 1.0' "${accept[@]}"
has '"metadata":{"gRPC_port":"9090"}'
signed='&ak=access&data=1700000000000%40%40test_group%40%40APISIX-NACOS&signature=Zm9vYmFyYmF6cXV4Zm9vYmFyYmE%3D'
call GET "$list&namespaceId=test_ns&groupName=test_group$signed" "${accept[@]}"
are '10.1.0.3 1981 1.0'
[ "$type" = application/json ] || fail "want JSON"

# A service that nobody has registered is a list of nothing: APISIX reads its hosts all the same.
call GET "$v1/ns/instance/list?healthyOnly=true&serviceName=unknown&namespaceId=public&groupName=DEFAULT_GROUP" "${accept[@]}"
has '"hosts":[]'

# Its tests ask for the names of services.
shows "$v1/ns/service/list?pageNo=1&pageSize=2&namespaceId=test_ns&groupName=test_group" is "{\"count\":1,\"doms\":[\"$service\"]}"

for ip in 10.1.0.1 10.1.0.2; do ok DELETE "$v1/ns/instance?serviceName=$service&ip=$ip&port=1980&ephemeral=false"; done
for ip in 10.1.0.3 10.1.0.4; do ok DELETE "$v1/ns/instance?serviceName=$service&groupName=test_group&namespaceId=test_ns&ip=$ip&port=1981"; done
shows "$list&namespaceId=public&groupName=DEFAULT_GROUP" has '"hosts":[]'
