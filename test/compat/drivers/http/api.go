package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

// An api is one version of the HTTP API: what is sent, and what an answer says. All parameters go
// into the query, which every server reads, whatever the method.
type api interface {
	register(namespace string, s bare.Service, i drivers.Instance) request
	deregister(namespace string, s bare.Service, i drivers.Instance) request
	// beat is whole, or of the light kind if the server has said that it wants no more.
	beat(namespace string, s bare.Service, i drivers.Instance, light bool) request
	list(namespace string, s bare.Service, clusters []string) request
	services(namespace, group string, page, size int) request

	written(body []byte) error // the answer to a registration or deregistration
	beaten(body []byte) (beatAnswer, error)
	listed(body []byte) (*bare.Info, error)
	named(body []byte) ([]string, int, error)

	lacks() []string
}

type request struct {
	method, path string
	query        url.Values
}

// A beatAnswer says what to do next.
type beatAnswer struct {
	unknown  bool // the server does not know the instance: register it again
	light    bool // from now on send light ones
	interval time.Duration
}

const beatInterval = 5 * time.Second // unless the server or the instance says another

// instance are the parameters that say all of an instance.
func instance(q url.Values, i drivers.Instance) url.Values {
	metadata, err := json.Marshal(i.Metadata)
	if err != nil {
		panic("BUG: strings cannot be encoded: " + err.Error())
	}
	for k, v := range map[string]string{
		"weight": strconv.FormatFloat(i.Weight, 'f', -1, 64), "healthy": strconv.FormatBool(i.Healthy),
		"enabled": strconv.FormatBool(i.Enabled), "metadata": string(metadata),
	} {
		q.Set(k, v)
	}
	return q
}

// address are those that say which one it is.
func address(q url.Values, i drivers.Instance) url.Values {
	for k, v := range map[string]string{
		"ip": i.IP, "port": strconv.Itoa(i.Port), "clusterName": i.Cluster, "ephemeral": strconv.FormatBool(i.Ephemeral),
	} {
		q.Set(k, v)
	}
	return q
}

// v1 is what clients of Nacos 1.x speak, and all servers up to 3.1 know.
type v1 struct{}

func (v1) lacks() []string { return nil }

func (v1) service(namespace string, s bare.Service) url.Values {
	return url.Values{"namespaceId": {namespace}, "serviceName": {s.Grouped()}, "groupName": {s.Group}}
}

func (v v1) register(namespace string, s bare.Service, i drivers.Instance) request {
	q := instance(address(v.service(namespace, s), i), i)
	q.Set("enable", q.Get("enabled")) // clients of 1.x know only this name
	return request{http.MethodPost, "/nacos/v1/ns/instance", q}
}

func (v v1) deregister(namespace string, s bare.Service, i drivers.Instance) request {
	return request{http.MethodDelete, "/nacos/v1/ns/instance", address(v.service(namespace, s), i)}
}

func (v v1) beat(namespace string, s bare.Service, i drivers.Instance, light bool) request {
	q := address(v.service(namespace, s), i)
	if !light {
		beat, err := json.Marshal(map[string]any{
			"serviceName": s.Grouped(), "cluster": i.Cluster, "ip": i.IP, "port": i.Port, "weight": i.Weight,
			"metadata": i.Metadata, "period": period(i).Milliseconds(), "scheduled": false, "stopped": false,
		})
		if err != nil {
			panic("BUG: a beat cannot be encoded: " + err.Error())
		}
		q.Set("beat", string(beat))
	}
	return request{http.MethodPut, "/nacos/v1/ns/instance/beat", q}
}

func (v v1) list(namespace string, s bare.Service, clusters []string) request {
	q := v.service(namespace, s)
	q.Set("clusters", strings.Join(clusters, ","))
	q.Set("healthyOnly", "false")
	return request{http.MethodGet, "/nacos/v1/ns/instance/list", q}
}

func (v1) services(namespace, group string, page, size int) request {
	return request{http.MethodGet, "/nacos/v1/ns/service/list", url.Values{"namespaceId": {namespace}, "groupName": {group},
		"pageNo": {strconv.Itoa(page)}, "pageSize": {strconv.Itoa(size)}}}
}

func (v1) written(body []byte) error {
	if string(body) != "ok" {
		return fmt.Errorf("the server says %q", body)
	}
	return nil
}

func (v1) beaten(body []byte) (beatAnswer, error) {
	var a struct {
		Code               int   `json:"code"`
		ClientBeatInterval int64 `json:"clientBeatInterval"`
		LightBeatEnabled   bool  `json:"lightBeatEnabled"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return beatAnswer{}, fmt.Errorf("answer to a beat: %w", err)
	}
	const unknown = 20404
	return beatAnswer{a.Code == unknown, a.LightBeatEnabled, time.Duration(a.ClientBeatInterval) * time.Millisecond}, nil
}

func (v1) listed(body []byte) (*bare.Info, error) {
	info := new(bare.Info)
	return info, json.Unmarshal(body, info)
}

func (v1) named(body []byte) ([]string, int, error) {
	var a struct {
		Doms  []string `json:"doms"`
		Count int      `json:"count"`
	}
	err := json.Unmarshal(body, &a)
	return a.Doms, a.Count, err
}

// v3 is the client API of Nacos 3. Its lists are those of one cluster, do not say when they were
// made nor whether the threshold is reached, and services are listed by the admin API only.
type v3 struct{}

func (v3) lacks() []string { return []string{"protected", "services"} }

const v3Instance = "/nacos/v3/client/ns/instance"

func (v3) service(namespace string, s bare.Service) url.Values {
	return url.Values{"namespaceId": {namespace}, "serviceName": {s.Name}, "groupName": {s.Group}}
}

func (v v3) register(namespace string, s bare.Service, i drivers.Instance) request {
	return request{http.MethodPost, v3Instance, instance(address(v.service(namespace, s), i), i)}
}

func (v v3) deregister(namespace string, s bare.Service, i drivers.Instance) request {
	return request{http.MethodDelete, v3Instance, address(v.service(namespace, s), i)}
}

func (v v3) beat(namespace string, s bare.Service, i drivers.Instance, _ bool) request {
	q := address(v.service(namespace, s), i)
	q.Set("heartBeat", "true")
	return request{http.MethodPost, v3Instance, q}
}

func (v v3) list(namespace string, s bare.Service, clusters []string) request {
	q := v.service(namespace, s)
	if len(clusters) > 0 {
		q.Set("clusterName", clusters[0])
	}
	return request{http.MethodGet, v3Instance + "/list", q}
}

func (v v3) services(namespace, group string, _, _ int) request {
	return v.list(namespace, bare.Service{Group: group, Name: "none"}, nil) // any answer will do
}

// data opens the envelope that all answers have. The error is errUnknown for an instance that the
// server does not know.
func (v3) data(body []byte, data any) error {
	a := struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data"`
	}{Data: data}
	if err := json.Unmarshal(body, &a); err != nil {
		return err
	}
	const unknown = 21003
	switch a.Code {
	case 0:
		return nil
	case unknown:
		return errUnknown
	}
	return fmt.Errorf("the server says %s (code %d)", a.Message, a.Code)
}

var errUnknown = errors.New("the server does not know the instance")

func (v v3) written(body []byte) error { return v.data(body, new(any)) }

func (v v3) beaten(body []byte) (beatAnswer, error) {
	err := v.data(body, new(any))
	if errors.Is(err, errUnknown) {
		return beatAnswer{unknown: true}, nil
	}
	return beatAnswer{}, err
}

func (v v3) listed(body []byte) (*bare.Info, error) {
	info := new(bare.Info)
	return info, v.data(body, &info.Hosts)
}

func (v v3) named(body []byte) ([]string, int, error) { return nil, 0, v.data(body, new(any)) }
