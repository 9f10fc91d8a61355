package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// An api is a version of the HTTP API of Nacos, as far as it is needed here.
type api struct {
	version        string
	list, instance string // paths
	// wrapped: answers are {"code":0,"data":…}.
	wrapped bool
}

var (
	apiV1 = &api{version: "v1", list: "/nacos/v1/ns/instance/list", instance: "/nacos/v1/ns/instance"}
	// Nacos 3 does not offer v1 any more unless it is told to.
	apiV3 = &api{version: "v3", list: "/nacos/v3/client/ns/instance/list", instance: "/nacos/v3/client/ns/instance", wrapped: true}
)

// A host is an instance in an answer of the HTTP API.
type host struct {
	IP      string `json:"ip"`
	Port    int    `json:"port"`
	Healthy bool   `json:"healthy"`
	Enabled bool   `json:"enabled"`
}

func (h *host) address() string { return net.JoinHostPort(h.IP, strconv.Itoa(h.Port)) }

// shown are the addresses that clients may use.
func shown(hosts []host) []string {
	var list []string
	for _, h := range hosts {
		if h.Healthy && h.Enabled {
			list = append(list, h.address())
		}
	}
	return list
}

// hosts asks the server at an address for the instances of a service.
func (a *api) hosts(ctx context.Context, server, service string) ([]host, error) {
	status, body, err := get(ctx, "http://"+server+a.list+"?"+url.Values{"serviceName": {service}}.Encode(), time.Second)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d: %.200s", server, status, body)
	}
	if !a.wrapped {
		var answer struct {
			Hosts []host `json:"hosts"`
		}
		err = json.Unmarshal(body, &answer)
		return answer.Hosts, err
	}
	var answer struct {
		Code int    `json:"code"`
		Data []host `json:"data"`
	}
	if err = json.Unmarshal(body, &answer); err == nil && answer.Code != 0 {
		err = fmt.Errorf("%s: code %d: %.200s", server, answer.Code, body)
	}
	return answer.Data, err
}

// persist registers a persistent instance, or deregisters it.
func (a *api) persist(ctx context.Context, server, service, address string, deregister bool) error {
	ip, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	form := url.Values{"serviceName": {service}, "ip": {ip}, "port": {port}, "ephemeral": {"false"}}
	method := http.MethodPost
	if deregister {
		method = http.MethodDelete
	}
	status, body, err := do(ctx, method, "http://"+server+a.instance+"?"+form.Encode(), persistTimeout)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("%s: status %d: %.200s", server, status, strings.TrimSpace(string(body)))
	case a.wrapped:
		var answer struct {
			Code int `json:"code"`
		}
		if err := json.Unmarshal(body, &answer); err != nil || answer.Code != 0 {
			return fmt.Errorf("%s: %.200s", server, body)
		}
	}
	return nil
}

// web makes a new connection for each request: a reader must not wait on one
// that leads to a process that is gone.
var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string, limit time.Duration) (int, []byte, error) {
	return do(ctx, http.MethodGet, url, limit)
}

// do reads at most 16 MiB: a server that is broken on purpose may send anything.
func do(ctx context.Context, method, url string, limit time.Duration) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := web.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	return res.StatusCode, body, err
}
