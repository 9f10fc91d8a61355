#!/usr/bin/env bash
# What the CoreDNS plugin of Nacos sends, in its first releases and in later ones: the names of all
# services every 30 seconds, then each service that was asked for. It is told of no changes over UDP.
. "$(dirname "$0")/lib.sh"

old=(-A Go-http-client/1.1 -H 'Client-Version: Nacos-DNS:v1.0.1')
new=(-A Go-http-client/1.1 -H 'Client-Version: Nacos-DNS:v1.0.2')

ok POST /v1/ns/instance -d 'serviceName=dns-a.example&ip=10.2.0.1&port=53&weight=1'
ok POST /v1/ns/instance -d 'serviceName=dns-a.example&ip=10.2.0.2&port=53&weight=3'
ok POST /v1/ns/instance -d 'serviceName=dns-b.example&ip=10.2.0.3&port=53'

shows '/v1/ns/api/allDomNames?udpPort=55000' has '"dns-a.example","dns-b.example"' "${old[@]}"
[[ $body =~ ^\{\"count\":[0-9]+,\"doms\":\[\" ]] || fail "want the names in a flat list"
shows '/v1/ns/api/allDomNames?udpPort=55000' has '"dns-a.example","dns-b.example"' "${new[@]}"
[[ $body =~ ^\{\"count\":[0-9]+,\"doms\":\{.*\"public\":\[ ]] || fail "want the names by namespace"

shows '/v1/ns/api/srvIPXT?clientIP=10.9.9.9&dom=dns-a.example&udpPort=55000' are $'10.2.0.1 53 1.0\n10.2.0.2 53 3.0' "${new[@]}"
has '"dom":"dns-a.example"'
has '"valid":true'
has '"cacheMillis":'
call GET '/v1/ns/api/srvIPXT?dom=dns-unknown.example&udpPort=55000' "${new[@]}"
has '"hosts":[]'

ok DELETE '/v1/ns/instance?serviceName=dns-a.example&ip=10.2.0.1&port=53'
ok DELETE '/v1/ns/instance?serviceName=dns-a.example&ip=10.2.0.2&port=53'
ok DELETE '/v1/ns/instance?serviceName=dns-b.example&ip=10.2.0.3&port=53'
shows '/v1/ns/api/srvIPXT?dom=dns-a.example&udpPort=55000' has '"hosts":[]' "${new[@]}"
