package compat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// notHad are errors of the document that no test can bring about from outside.
var notHad = map[string]string{
	"not_understood":  "needs a node of an older release",
	"unknown_outcome": "needs a leader that is lost in the middle of a write",
	"timeout":         "needs a node that takes 20 s to answer",
}

// A try is a request of the document.
type try struct {
	About, Query, Body, Code string
	Status, Pad              int
	Headers                  map[string]string
}

// An apiDocument is what nodes say of the native API, and what was seen of it.
type apiDocument struct {
	*openapi3.T
	seen map[string]bool // METHOD path status code
}

// TestOpenAPI holds nodes to the document that they serve: each request in it is sent, and each answer
// and each error that it names must come, with the schema that it says.
func TestOpenAPI(t *testing.T) {
	dir := runDir(t)
	bin := serverBinary(t)
	single := startServer(t, bin, dir+"/single")
	doc := readDocument(t, single)
	at := service{name: "order"}
	seed := func(s *server) {
		s.order(t, http.MethodPost, "/instance", at, "ip", "10.0.0.7", "port", "8080", "ephemeral", "false")
	}
	seed(single)
	doc.trySingle(t, single)

	nodes := startCluster(t, bin, dir+"/cluster", 3)
	leader := waitLeader(t, nodes)
	followers := slices.DeleteFunc(slices.Clone(nodes), func(n *server) bool { return n == leader })
	seed(followers[1])
	doc.tryCluster(t, leader, followers[0], followers[1])

	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, response := range op.Responses.Map() {
				codes := []string{""}
				if status == "default" {
					continue
				} else if status != "200" {
					codes = extension[[]string](t, response.Value.Extensions, "x-codes")
				}
				for _, code := range codes {
					if call := strings.TrimSpace(method + " " + path + " " + status + " " + code); !doc.seen[call] && notHad[code] == "" {
						t.Errorf("not seen: %s", call)
					}
				}
			}
		}
	}
}

func readDocument(t *testing.T, s *server) *apiDocument {
	t.Helper()
	res, err := http.Get("http://" + s.address() + "/starling/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil { // examples too
		t.Fatal(err)
	}
	// Clients are to pass over fields that they do not know; here there are to be none.
	for _, s := range doc.Components.Schemas {
		if len(s.Value.Properties) > 0 {
			s.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: new(bool)}
		}
	}
	return &apiDocument{doc, map[string]bool{}}
}

func extension[T any](t *testing.T, of map[string]any, name string) (v T) {
	t.Helper()
	b, err := json.Marshal(of[name])
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// trySingle sends the requests of the document to a node that is alone.
func (d *apiDocument) trySingle(t *testing.T, s *server) {
	type call struct {
		method, path string
		op           *openapi3.Operation
	}
	var calls []call
	for path, item := range d.Paths.Map() {
		for method, op := range item.Operations() {
			calls = append(calls, call{method, path, op})
		}
	}
	slices.SortFunc(calls, func(a, b call) int {
		return extension[int](t, a.op.Extensions, "x-order") - extension[int](t, b.op.Extensions, "x-order")
	})
	var backup []byte
	for _, c := range calls {
		for _, try := range extension[[]try](t, c.op.Extensions, "x-requests") {
			if try.Body == "@backup" {
				try.Body = string(backup)
			}
			body := d.send(t, s, c.method, c.path, try)
			if c.path == "/backup" && try.Status == 200 {
				backup = body
			}
		}
	}
}

// tryCluster takes a cluster apart, and has the errors that come of it. The instance is known to the
// leader and to other.
func (d *apiDocument) tryCluster(t *testing.T, leader, gone, other *server) {
	var members struct {
		Members []struct {
			ID    string
			Ports struct{ HTTP int }
		}
	}
	if err := json.Unmarshal(d.send(t, leader, "GET", "/members", try{Status: 200}), &members); err != nil {
		t.Fatal(err)
	}
	id := ""
	for _, m := range members.Members {
		if m.Ports.HTTP == gone.port {
			id = m.ID
		}
	}
	const instance = `{"service":"order","ip":"10.0.0.7","port":8080`
	d.send(t, other, "POST", "/instances/evict", try{Body: instance + "}", Status: 200}) // a follower writes as well
	d.send(t, leader, "POST", "/members/remove", try{Body: `{"id":"` + id + `"}`, Status: 409, Code: "conflict"})
	d.send(t, other, "GET", "/backup", try{Status: 409, Code: "not_leader"})
	d.send(t, other, "POST", "/restore", try{Query: "force=true", Body: "x", Status: 409, Code: "not_leader"})
	d.send(t, other, "POST", "/members/remove", try{Body: `{"id":"c3"}`, Status: 409, Code: "not_leader"})

	if err := gone.kill(); err != nil {
		t.Fatal(err)
	}
	d.until(t, leader, "GET", "/hashes", try{Query: "node=" + id, Status: 502, Code: "unreachable"})
	d.until(t, leader, "POST", "/members/remove", try{Body: `{"id":"` + id + `"}`, Status: 200})
	if err := other.kill(); err != nil {
		t.Fatal(err)
	}
	// Now there is one of two voters.
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/instances/edit", instance + `,"enabled":false}`}, {"POST", "/instances/evict", instance + "}"}, {"POST", "/instances/lift", instance + "}"},
		{"POST", "/namespaces", `{"id":"dev"}`}, {"POST", "/namespaces/remove", `{"id":"dev"}`},
		{"GET", "/backup", ""}, {"POST", "/restore", "x"}, {"POST", "/members/remove", `{"id":"c3"}`},
	} {
		d.until(t, leader, c.method, c.path, try{Body: c.body, Status: 503, Code: "no_leader"})
	}
}

// until sends a request again and again until it is answered as it should be. What else comes has its
// schema as well.
func (d *apiDocument) until(t *testing.T, s *server, method, path string, r try) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		status, code, _, err := d.ask(s, method, path, r)
		switch {
		case err != nil:
			t.Fatalf("%s %s: %v", method, path, err)
		case status == r.Status && code == r.Code:
			return
		case time.Now().After(end):
			t.Errorf("%s %s: %d %s, want %d %s", method, path, status, code, r.Status, r.Code)
			return
		}
	}
}

func (d *apiDocument) send(t *testing.T, s *server, method, path string, r try) []byte {
	t.Helper()
	status, code, body, err := d.ask(s, method, path, r)
	if err != nil || status != r.Status || code != r.Code {
		t.Errorf("%s %s?%s %.200s (%s): %d %s, want %d %s; %v\n%.1000s", method, path, r.Query, r.Body, r.About, status, code, r.Status, r.Code, err, body)
	}
	return body
}

// ask sends a request, and compares it and its answer with the document.
func (d *apiDocument) ask(s *server, method, path string, r try) (status int, code string, body []byte, err error) {
	op := d.Paths.Value(path).GetOperation(method)
	req, err := http.NewRequest(method, "http://"+s.address()+"/starling/v1"+path+"?"+r.Query, strings.NewReader(strings.Repeat(" ", r.Pad)+r.Body))
	if err != nil {
		return 0, "", nil, err
	}
	if op.RequestBody != nil {
		for kind := range op.RequestBody.Value.Content {
			req.Header.Set("Content-Type", kind)
		}
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(res.Body); err != nil {
		return 0, "", nil, err
	}
	if res.StatusCode == http.StatusOK {
		if err := asDocumented(op, req, r.Body); err != nil {
			return res.StatusCode, "", body, fmt.Errorf("what was sent: %w", err)
		}
	}
	response := op.Responses.Value(strconv.Itoa(res.StatusCode))
	if response == nil {
		return res.StatusCode, "", body, fmt.Errorf("status %d is not in the document", res.StatusCode)
	}
	kind := res.Header.Get("Content-Type")
	content := response.Value.Content[kind]
	if content == nil {
		return res.StatusCode, "", body, fmt.Errorf("content type %q is not in the document", kind)
	}
	if kind == "application/json" {
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			return res.StatusCode, "", body, err
		}
		if err := content.Schema.Value.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.EnableFormatValidation()); err != nil {
			return res.StatusCode, "", body, err
		}
	}
	if res.StatusCode != http.StatusOK {
		var e struct{ Error struct{ Code string } }
		if err := json.NewDecoder(bytes.NewReader(body)).Decode(&e); err != nil {
			return res.StatusCode, "", body, err
		}
		code = e.Error.Code
	}
	d.seen[strings.TrimSpace(fmt.Sprintf("%s %s %d %s", method, path, res.StatusCode, code))] = true
	return res.StatusCode, code, body, nil
}

// asDocumented compares a request that was taken.
func asDocumented(op *openapi3.Operation, req *http.Request, body string) error {
	query := req.URL.Query()
	for name := range query {
		if op.Parameters.GetByInAndName("query", name) == nil {
			return fmt.Errorf("the document has no parameter %s", name)
		}
	}
	for _, p := range op.Parameters {
		if p.Value.Required && !query.Has(p.Value.Name) {
			return fmt.Errorf("the parameter %s is missing", p.Value.Name)
		}
	}
	if op.RequestBody == nil || op.RequestBody.Value.Content["application/json"] == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return err
	}
	return op.RequestBody.Value.Content["application/json"].Schema.Value.VisitJSON(v, openapi3.VisitAsRequest())
}
