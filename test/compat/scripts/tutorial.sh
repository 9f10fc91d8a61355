#!/usr/bin/env bash
# The life of an instance as tutorials show it, with nothing but curl: in the query and in forms, by
# the API of 1.x and, at the end, by three generations at once (cases C22, C33).
. "$(dirname "$0")/lib.sh"

at='serviceName=nacos.naming.serviceName&ip=20.18.7.10&port=8080'
list='/v1/ns/instance/list?serviceName=nacos.naming.serviceName'

ok POST "/v1/ns/instance?$at"
[ "$type" = 'text/plain;charset=UTF-8' ] || fail "want text"
shows "$list" are '20.18.7.10 8080 1.0'
has '"name":"DEFAULT_GROUP@@nacos.naming.serviceName","groupName":"DEFAULT_GROUP","clusters":""'
has '"hosts":[{"instanceId":"20.18.7.10#8080#DEFAULT#DEFAULT_GROUP@@nacos.naming.serviceName","ip":"20.18.7.10","port":8080,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","serviceName":"DEFAULT_GROUP@@nacos.naming.serviceName","metadata":{},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000'
shows '/v1/ns/service/list?pageNo=1&pageSize=100' has '"nacos.naming.serviceName"'

beat=/v1/ns/instance/beat
call PUT "$beat?$at"
is '{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}'
call PUT "$beat?serviceName=nacos.naming.serviceName&ip=20.18.7.11&port=8080" # unknown, and no body that says what it is
is '{"clientBeatInterval":5000,"code":20404,"lightBeatEnabled":true}'
# With another weight: a beat changes nothing of what is there.
call PUT "$beat?serviceName=nacos.naming.serviceName" --data-urlencode 'beat={"ip":"20.18.7.10","port":8080,"weight":9,"metadata":{"a":"b"}}'
is '{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}'
call PUT "$beat?serviceName=nacos.naming.serviceName" --data-urlencode 'beat={"ip":"20.18.7.12","port":8080,"weight":2,"serviceName":"another","metadata":{"a":"b"}}'
is '{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}'
shows "$list" are $'20.18.7.10 8080 1.0\n20.18.7.12 8080 2.0'

call GET "/v1/ns/instance?$at"
is '{"service":"DEFAULT_GROUP@@nacos.naming.serviceName","ip":"20.18.7.10","port":8080,"clusterName":"DEFAULT","weight":1.0,"healthy":true,"instanceId":"20.18.7.10#8080#DEFAULT#DEFAULT_GROUP@@nacos.naming.serviceName","metadata":{}}'

# Taken out of service in three ways.
ok PUT "/v1/ns/instance?$at&weight=0" --data-urlencode 'metadata={"team":"a"}'
shows "$list" are $'20.18.7.10 8080 0.0\n20.18.7.12 8080 2.0'
has '"metadata":{"team":"a"}'
ok PUT /v1/ns/instance -d "$at&enabled=false"
shows "$list" are '20.18.7.12 8080 2.0'
ok PUT /v1/ns/instance -d "$at&enabled=true&weight=8"
shows "$list&healthyOnly=true" are $'20.18.7.10 8080 8.0\n20.18.7.12 8080 2.0'

ok DELETE "/v1/ns/instance?$at"
ok DELETE "/v1/ns/instance?$at" # whatever was there
ok DELETE /v1/ns/instance -d 'serviceName=nacos.naming.serviceName&ip=20.18.7.12&port=8080' # in a body
shows "$list" has '"hosts":[]'

# Registered by one version, read and renewed by others, removed by yet another.
result='{"code":0,"message":"success","data":"ok"}'
ok POST /v1/ns/instance -d 'serviceName=versions&ip=20.18.7.13&port=8080&groupName=g'
shows '/v3/client/ns/instance/list?serviceName=versions&groupName=g' has '"data":[{"instanceId":"20.18.7.13#8080#DEFAULT#g@@versions"'
shows '/v2/ns/instance/list?serviceName=versions&groupName=g' has '"name":"g@@versions"'
call POST /v3/client/ns/instance -d 'serviceName=versions&groupName=g&ip=20.18.7.13&port=8080&heartBeat=true'
is "$result"
call DELETE '/v2/ns/instance?serviceName=versions&groupName=g&ip=20.18.7.13&port=8080'
is "$result"
shows '/v3/client/ns/instance/list?serviceName=versions&groupName=g' is '{"code":0,"message":"success","data":[]}'

# What there is no such thing as.
call GET /v1/ns/no/such/thing
[ "$status" = 501 ] || fail "want status 501"
[[ $body == *'"message":"no such api:GET:/nacos/v1/ns/no/such/thing"'* ]] || fail "want that there is no such API"
