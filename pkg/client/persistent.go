package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// persistHTTP registers or deregisters a persistent instance by HTTP: v1, or v3
// at servers that have no v1 any more (E-2). A refusal is a [ServerError]; it is
// [ErrNotConnected] if no server has answered.
func persistHTTP(ctx context.Context, cfg *Config, list *servers, l *login, id ServiceID, r Registration, deregister bool) error {
	servers, err := list.forHTTP(ctx)
	if err != nil {
		return err
	}
	var failed error
	for again := false; len(servers) > 0; {
		headers, err := l.headers(ctx)
		if err != nil {
			return err
		}
		status, body, err := persistAt(ctx, cfg, list.web, servers[0], headers, id, r, deregister)
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrNotConnected, context.Cause(ctx))
		}
		if err == nil && !unavailable(status) {
			refusal := httpRefusal(status, body)
			if refusal == nil {
				return nil
			}
			if status != http.StatusForbidden {
				return refusal
			}
			if again || !l.refused(headers) {
				return refusal
			}
			again = true // at the same server
			continue
		}
		failed = cmp.Or(err, fmt.Errorf("%s answers with status %d", servers[0], status))
		servers = servers[1:]
	}
	return fmt.Errorf("%w: %w", ErrNotConnected, failed)
}

// persistAt asks one server.
func persistAt(ctx context.Context, cfg *Config, w *web, srv server, headers map[string]string, id ServiceID, r Registration, deregister bool) (status int, body []byte, err error) {
	headers = maps.Clone(headers)
	metadata, err := json.Marshal(r.Metadata)
	if err != nil {
		return 0, nil, err
	}
	weight := cmp.Or(r.Weight, 1)
	if r.ZeroWeight {
		weight = 0
	}
	p := url.Values{
		"namespaceId": {cmp.Or(cfg.Namespace, "public")},
		"groupName":   {id.Group},
		"clusterName": {cmp.Or(r.Cluster, DefaultCluster)},
		"ip":          {r.IP},
		"port":        {strconv.Itoa(r.Port)},
		"ephemeral":   {"false"},
	}
	if !deregister {
		p.Set("weight", strconv.FormatFloat(weight, 'g', -1, 64))
		p.Set("enabled", strconv.FormatBool(!r.Disabled))
		p.Set("enable", p.Get("enabled")) // its name in v1
		p.Set("healthy", strconv.FormatBool(!r.Unhealthy))
		if len(r.Metadata) > 0 {
			p.Set("metadata", string(metadata))
		}
	}
	// HTTP has the token as a parameter (N-20).
	if token, ok := headers[headerToken]; ok {
		p.Set(headerToken, token)
		delete(headers, headerToken)
	}
	call := func(path string) (int, []byte, error) {
		if deregister {
			return w.call(ctx, srv, http.MethodDelete, path, headers, p, nil)
		}
		return w.call(ctx, srv, http.MethodPost, path, headers, nil, p) // metadata may be long
	}
	p.Set("serviceName", id.String())
	status, body, err = call("/v1/ns/instance")
	if err != nil || !missing(status) {
		return status, body, err
	}
	p.Set("serviceName", id.Name)
	return call("/v3/client/ns/instance")
}

// nested is how servers write the code of an error into a text.
var nested = regexp.MustCompile(`errCode: (\d{3,5}), ?errMsg: `)

// httpRefusal is nil for a success. Servers answer by status and a text, or (v3)
// by JSON with a code of its own.
func httpRefusal(status int, body []byte) *ServerError {
	text := strings.TrimSpace(string(body))
	e := &ServerError{ResultCode: status, Code: status, Message: text}
	var result struct {
		Code    *int   `json:"code"`
		Status  int    `json:"status"` // of Spring's error page
		Message string `json:"message"`
		Data    any    `json:"data"`
	}
	if strings.HasPrefix(text, "{") && json.Unmarshal(body, &result) == nil && (result.Code != nil || result.Status != 0) {
		if result.Code != nil {
			e.Code = *result.Code
		}
		e.Message = cmp.Or(result.Message, text)
		if s, ok := result.Data.(string); ok && s != "" {
			e.Message += ": " + s
		}
		if e.Code == 0 || e.Code == http.StatusOK {
			e.Code = status
		}
	}
	if status == http.StatusOK && e.Code == http.StatusOK {
		return nil
	}
	// An argument that makes no sense comes with status 500 too (E-3).
	if m := nested.FindStringSubmatch(text); m != nil && e.Code == http.StatusInternalServerError {
		e.Code, _ = strconv.Atoi(m[1])
	}
	if status == http.StatusForbidden || status == http.StatusUnauthorized {
		e.Code = status
	}
	if len(e.Message) > 1000 {
		e.Message = strings.ToValidUTF8(e.Message[:1000], "")
	}
	return e
}
