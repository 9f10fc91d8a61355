package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

// openapi.json is made of the types of package api, their comments included, and
// of the table below. It is in the tree, so that a change of the API is seen in
// a review: after one, run
//
//	go test ./pkg/httpapi -run TestOpenAPI -update
//
// test/compat sends the requests of the table to running nodes, with a library
// that knows OpenAPI.
var update = flag.Bool("update", false, "write openapi.json anew")

// An operation is what the document says of one method of a path.
type operation struct {
	call     string // METHOD /path
	tag      string
	summary  string
	about    string // more than the types say
	params   []parameter
	body     any // an example of the type; nil: none
	answer   any // of the type; nil: bytes
	requests []request
	// refusals are those that depend on circumstances, and not on the request.
	refusals []refusal
}

type parameter struct {
	name, typ, about string
	required         bool
	example          any
}

// A request is one to try, on a single node with the instance 10.0.0.7:8080 of
// service order, in the order of the table.
type request struct {
	about   string
	query   string // of GET, as it is
	body    string // of POST; "@backup" is what GET /backup gave
	status  int    // 0: 200
	code    string // of an error
	headers map[string]string
	pad     int // so many blanks before the body
}

type refusal struct {
	status int
	code   string
	when   string
}

var (
	serviceParams = []parameter{
		{"namespace", "string", "Namespace of the service; absent: public.", false, "public"},
		{"group", "string", "Group of the service; absent: DEFAULT_GROUP.", false, "DEFAULT_GROUP"},
		{"service", "string", "Name of the service, or GROUP@@NAME.", true, "order"},
	}
	noLeader      = refusal{503, api.CodeNoLeader, "The log of the cluster has no leader, so nothing was written."}
	notUnderstood = refusal{503, api.CodeNotUnderstood, "Some nodes are of an older release. Nothing was written."}
	unknown       = refusal{504, api.CodeUnknownOutcome, "It may have been written, now or later: look before you write again."}
	notLeader     = refusal{409, api.CodeNotLeader, "Another node leads; server in the error says which."}
)

const anInstance = `"service":"order","ip":"10.0.0.7","port":8080`

func operations() []operation {
	return []operation{
		{call: "GET /services", tag: "services", summary: "List services", about: "A page of the services of a namespace, or of all, as the node that is asked knows them.",
			params: []parameter{
				{"namespace", "string", "Only this namespace; absent: public.", false, "public"},
				{"allNamespaces", "boolean", "Those of all namespaces; excludes namespace.", false, false},
				{"group", "string", "Only this group; absent: all.", false, "DEFAULT_GROUP"},
				{"name", "string", "Only services whose name contains this.", false, "ord"},
				{"limit", "integer", "At most so many, 1 to 10,000; absent: 1,000.", false, 100},
				{"offset", "integer", "Leave out so many first.", false, 0},
			},
			answer: api.Services{}, requests: []request{{about: "all of namespace public"}, {query: "namespace=public&group=DEFAULT_GROUP&name=ord&limit=100&offset=0"}, {query: "allNamespaces=true"},
				{query: "limit=0", status: 400, code: api.CodeBadRequest}}},
		{call: "GET /instances", tag: "services", summary: "List the instances of a service", about: "Disabled and evicted ones too, with what operators have set.",
			params: append(slices.Clone(serviceParams), parameter{"cluster", "string", "Only those of one cluster of the service.", false, "DEFAULT"}),
			answer: api.Instances{}, requests: []request{{query: "service=order"}, {query: "namespace=public&group=DEFAULT_GROUP&service=order&cluster=DEFAULT"},
				{about: "no service", status: 400, code: api.CodeBadRequest}, {query: "service=none", status: 404, code: api.CodeNotFound}}},
		{call: "GET /subscribers", tag: "services", summary: "List who subscribes to a service", about: "Over the whole cluster, and who is behind.",
			params: serviceParams, answer: api.Subscribers{}, requests: []request{{query: "service=order"}, {query: "namespace=public&group=DEFAULT_GROUP&service=order"}, {about: "no service", status: 400, code: api.CodeBadRequest}}},
		{call: "GET /history", tag: "services", summary: "Tell the past of a service", about: "What all nodes together remember: when and why instances came, changed and went.",
			params: append(slices.Clone(serviceParams), parameter{"instance", "string", "Only this one, IP:PORT.", false, "10.0.0.7:8080"}),
			answer: api.History{}, requests: []request{{query: "service=order"}, {query: "namespace=public&group=DEFAULT_GROUP&service=order&instance=10.0.0.7:8080"}, {about: "no service", status: 400, code: api.CodeBadRequest}}},

		{call: "POST /instances/edit", tag: "edits", summary: "Edit an instance", about: "Lays something over what the client of an instance says, on all nodes.",
			body: api.EditRequest{}, answer: api.Edited{}, refusals: []refusal{noLeader, notUnderstood, unknown},
			requests: []request{{about: "disable", body: `{` + anInstance + `,"enabled":false}`}, {about: "everything", body: `{"namespace":"public","group":"DEFAULT_GROUP",` + anInstance +
				`,"cluster":"DEFAULT","reset":true,"enabled":true,"weight":0.5,"metadata":{"zone":"b"},"sticky":false}`}, {about: "take a key back", body: `{` + anInstance + `,"metadata":{"zone":null}}`},
				{about: "before it is there", body: `{"service":"order","ip":"10.0.0.9","port":8080,"enabled":false,"sticky":true}`},
				{about: "not there", body: `{"service":"order","ip":"10.0.0.10","port":8080,"enabled":false}`, status: 404, code: api.CodeNotFound},
				{about: "nothing to change", body: `{` + anInstance + `}`, status: 400, code: api.CodeBadRequest}}},
		{call: "POST /instances/evict", tag: "edits", summary: "Evict an instance", about: "Clients do not see it, and who registers it is refused, until it is lifted.",
			body: api.EvictRequest{}, answer: api.Edited{}, refusals: []refusal{noLeader, notUnderstood, unknown},
			requests: []request{{body: `{` + anInstance + `}`}, {about: "before it is there", body: `{"service":"order","ip":"10.0.0.11","port":8080,"absent":true}`},
				{about: "not there", body: `{"service":"order","ip":"10.0.0.10","port":8080}`, status: 404, code: api.CodeNotFound}}},
		{call: "GET /edits", tag: "edits", summary: "List edits and evictions", about: "Those of instances too that are not there at the moment.",
			params: []parameter{{"namespace", "string", "Only this namespace; absent: all.", false, "public"}},
			answer: api.Edits{}, requests: []request{{about: "all"}, {query: "namespace=public"}, {query: "namespace=a%20b", status: 400, code: api.CodeBadRequest}}},
		{call: "POST /instances/lift", tag: "edits", summary: "End an eviction", about: "Other edits of the instance stay.",
			body: api.InstanceRef{}, answer: api.Edited{}, refusals: []refusal{noLeader, notUnderstood, unknown},
			requests: []request{{body: `{` + anInstance + `}`}, {about: "not evicted", body: `{` + anInstance + `}`, status: 404, code: api.CodeNotFound}}},

		{call: "GET /namespaces", tag: "namespaces", summary: "List namespaces", answer: api.Namespaces{}, requests: []request{{}}},
		{call: "POST /namespaces", tag: "namespaces", summary: "Make a namespace", about: "One works without; making it gives it a name.",
			body: api.NamespaceRequest{}, answer: api.Namespace{}, refusals: []refusal{noLeader, unknown},
			requests: []request{{body: `{"id":"dev","name":"Development","description":"for tests"}`}, {about: "with an id that is made up", body: `{}`}, {about: "it is there", body: `{"id":"dev"}`, status: 409, code: api.CodeConflict},
				{about: "a wrong id", body: `{"id":"a b"}`, status: 400, code: api.CodeBadRequest}}},
		{call: "POST /namespaces/remove", tag: "namespaces", summary: "Forget a namespace", about: "The services in it stay as they are.",
			body: api.RemoveNamespaceRequest{}, answer: api.Namespace{}, refusals: []refusal{noLeader, unknown},
			requests: []request{{body: `{"id":"dev"}`}, {about: "it is not there", body: `{"id":"dev"}`, status: 404, code: api.CodeNotFound}, {about: "it always is", body: `{"id":"public"}`, status: 409, code: api.CodeConflict}}},

		{call: "GET /members", tag: "cluster", summary: "List the nodes", about: "The cluster as the node that is asked sees it.", answer: api.Members{}, requests: []request{{}}},
		{call: "POST /members/remove", tag: "cluster", summary: "Take a node out of the log", about: "For one that is gone for good. Only the node that leads does it.",
			body: api.RemoveRequest{}, answer: api.Removed{}, refusals: []refusal{notLeader, noLeader},
			requests: []request{{about: "nobody has that id", body: `{"id":"c3333333333333333333333333333333"}`, status: 404, code: api.CodeNotFound}}},
		{call: "GET /cluster", tag: "cluster", summary: "Tell how far replication is", about: "The row of one node in the matrix node × life.", answer: api.Cluster{}, requests: []request{{}}},
		{call: "POST /self-preservation/end", tag: "cluster", summary: "Let leases run again", about: "Does nothing if they do.", body: struct{}{}, answer: api.SelfPreservation{}, requests: []request{{body: "{}"}}},
		{call: "GET /hashes", tag: "cluster", summary: "Tell what every service looks like", about: "To compare nodes; the node that is asked asks another one in turn.",
			params: []parameter{{"node", "string", "Id of the node to ask; absent: the one that answers.", false, "c3333333333333333333333333333333"}},
			answer: api.Hashes{}, requests: []request{{}, {query: "node=c3333333333333333333333333333333", status: 404, code: api.CodeNotFound}},
			refusals: []refusal{{502, api.CodeUnreachable, "That node cannot be asked."}, {504, api.CodeTimeout, "That node takes too long."}}},
		{call: "GET /drain", tag: "cluster", summary: "Tell how far a drain is", answer: api.Drain{}, requests: []request{{}}},
		{call: "POST /drain", tag: "cluster", summary: "Move the clients of a node to the others", about: "Answers at once: GET /drain tells how far it is. With dryRun nothing is done.",
			body: api.DrainRequest{}, answer: api.Drain{}, requests: []request{{about: "what would be done", body: `{"dryRun":true}`}, {about: "there is no other node", body: `{"dryRun":false}`, status: 409, code: api.CodeConflict}}},

		{call: "GET /raft", tag: "log", summary: "Tell the state of the log", about: "In the log is what must survive: persistent instances, what operators have set, accounts.", answer: api.Raft{}, requests: []request{{}}},
		{call: "GET /backup", tag: "log", summary: "Back up the log", about: "The tables of the leader, as bytes. The headers " + api.HeaderBytes + " and " + api.HeaderSHA256 + " follow as trailers: without them it is not whole.",
			requests: []request{{}}, refusals: []refusal{notLeader, noLeader}},
		{call: "POST /restore", tag: "log", summary: "Restore a backup", about: "The body is what GET /backup gave. The tables of all nodes are replaced.",
			params: []parameter{{"force", "boolean", "Also if something is overwritten.", false, false}},
			answer: api.Restored{}, refusals: []refusal{notLeader, noLeader},
			requests: []request{{query: "force=true", body: "@backup"}, {about: "there is something already", body: "@backup", status: 409, code: api.CodeNotEmpty}, {about: "no backup", query: "force=true", body: "x", status: 400, code: api.CodeBadRequest},
				{query: "force=perhaps", body: "@backup", status: 400, code: api.CodeBadRequest}}},
		{call: "GET /openapi.json", tag: "about", summary: "This document", answer: map[string]any{}, requests: []request{{}}},
	}
}

type object = map[string]any

// document makes the whole document.
func document(t *testing.T) object {
	d := &describer{t: t, comments: comments(t), schemas: object{}}
	paths := object{}
	for i, op := range operations() {
		method, path, _ := strings.Cut(op.call, " ")
		if paths[path] == nil {
			paths[path] = object{}
		}
		is := d.operation(method, path, &op)
		is["x-order"] = i // of its x-requests
		paths[path].(object)[strings.ToLower(method)] = is
	}
	d.schemas["Refusal"] = object{"type": "object", "description": "An answer other than success.", "required": []string{"error"}, "properties": object{"error": d.ref(reflect.TypeFor[api.Error](), false)}}
	return object{
		"openapi": "3.0.3",
		"info": object{"title": "Starling", "version": "1", "license": object{"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
			"description": "The native API of Starling, a service registry for Nacos clients. It is for operators and their programs; clients use the API of Nacos.\n\n" +
				"Any node answers. Reads are of what that node knows; it answers also while it is not ready. Writes go to the log of the cluster, whichever node leads it, " +
				"and are seen on the node that was asked when it answers.\n\n" +
				"Unknown parameters and fields are refused. Times are RFC 3339 in UTC, by the clock of the node that answers. Durations are whole milliseconds, in fields that end in Millis. " +
				"Lists are never null. New fields and new values of states may appear: a program should pass over what it does not know.\n\n" +
				"Everything but success has the shape of Refusal, with a code for programs and a hint for people. Writes take " +
				"application/json and nothing that a browser sends for another site. Nothing is authorised yet: no request asks for a token."},
		"servers": []object{{"url": api.Path, "description": "The HTTP port of any node."}},
		"tags": []object{{"name": "services", "description": "Services and their instances"}, {"name": "edits", "description": "What operators set for instances"}, {"name": "namespaces", "description": "Namespaces with names for people"},
			{"name": "cluster", "description": "The nodes"}, {"name": "log", "description": "What must survive"}, {"name": "about", "description": "This document"}},
		"security":   []object{}, // nobody is asked who they are
		"paths":      paths,
		"components": object{"schemas": d.schemas},
	}
}

type describer struct {
	t        *testing.T
	comments map[string]string // of types, and of fields as Type.Field
	schemas  object
}

func (d *describer) operation(method, path string, op *operation) object {
	words := strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '-' || r == '.' })
	var id strings.Builder
	id.WriteString(strings.ToLower(method))
	for _, w := range words {
		id.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	out := object{"operationId": id.String(), "tags": []string{op.tag}, "summary": op.summary}
	if op.about != "" {
		out["description"] = op.about
	}
	params := []object{}
	for _, p := range op.params {
		params = append(params, object{"name": p.name, "in": "query", "required": p.required, "description": p.about, "schema": object{"type": p.typ}, "example": p.example})
	}
	if len(params) > 0 {
		out["parameters"] = params
	}
	requests := slices.Clone(op.requests)
	binary := object{api.BackupType: object{"schema": object{"type": "string", "format": "binary"}}}
	switch {
	case op.body != nil:
		examples := object{}
		for i, r := range op.requests {
			if r.status == 0 {
				examples[strconv.Itoa(i+1)] = object{"summary": cmp.Or(r.about, op.summary), "value": json.RawMessage(r.body)}
			}
		}
		content := object{"schema": d.ref(reflect.TypeOf(op.body), true)}
		if len(examples) > 0 {
			content["examples"] = examples
		}
		out["requestBody"] = object{"required": true, "content": object{"application/json": content}}
		requests = append(requests, request{about: "an unknown field", body: `{"nonsense":1}`, status: 400, code: api.CodeBadRequest},
			request{about: "too large", body: "{}", pad: 1 << 20, status: 413, code: api.CodeTooLarge})
	case method == http.MethodPost:
		out["requestBody"] = object{"required": true, "content": binary}
	}
	if method == http.MethodPost {
		body := requests[0].body
		requests = append(requests, request{about: "from another site", body: body, headers: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 403, code: api.CodeForbidden},
			request{about: "not JSON", body: body, headers: map[string]string{"Content-Type": "text/plain"}, status: 415, code: api.CodeContentType})
	}
	if method == http.MethodGet || op.body == nil {
		requests = append(requests, request{about: "an unknown parameter", query: "nonsense=1", status: 400, code: api.CodeBadRequest})
	}

	refusals := slices.Clone(op.refusals)
	tries := []object{}
	for _, r := range requests {
		try := object{"status": cmp.Or(r.status, 200)}
		for name, v := range map[string]string{"about": r.about, "query": r.query, "body": r.body, "code": r.code} {
			if v != "" {
				try[name] = v
			}
		}
		if r.headers != nil {
			try["headers"] = r.headers
		}
		if r.pad != 0 {
			try["pad"] = r.pad
		}
		tries = append(tries, try)
		if r.status != 0 {
			refusals = append(refusals, refusal{r.status, r.code, ""})
		}
	}
	out["x-requests"] = tries

	responses := object{"default": object{"description": "Another refusal.", "content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Refusal"}}}}}
	ok := object{"description": op.summary + ".", "content": binary}
	if op.answer != nil {
		ok["content"] = object{"application/json": object{"schema": d.ref(reflect.TypeOf(op.answer), false)}}
	}
	responses["200"] = ok
	whens := map[string]string{api.CodeBadRequest: "A parameter or the body makes no sense.", api.CodeForbidden: "A browser sent it from another site.", api.CodeTooLarge: "The body is too large.",
		api.CodeContentType: "The body has another content type.", api.CodeNotFound: "What is named is not there.", api.CodeConflict: "It cannot be done as things are.", api.CodeNotEmpty: "Something would be overwritten."}
	byStatus := map[int][]string{}
	for _, r := range refusals {
		if r.when != "" {
			whens[r.code] = r.when
		}
		if !slices.Contains(byStatus[r.status], r.code) {
			byStatus[r.status] = append(byStatus[r.status], r.code)
		}
	}
	for status, codes := range byStatus {
		slices.Sort(codes)
		var says []string
		for _, c := range codes {
			says = append(says, c+": "+whens[c])
		}
		responses[strconv.Itoa(status)] = object{"description": strings.Join(says, " "), "x-codes": codes,
			"content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Refusal"}}}}
	}
	out["responses"] = responses
	return out
}

// ref describes a type; a named struct once, among the components. What is in a
// request body has no other fields.
func (d *describer) ref(typ reflect.Type, request bool) object {
	switch typ.Kind() {
	case reflect.Pointer:
		return d.ref(typ.Elem(), request)
	case reflect.Slice:
		return object{"type": "array", "items": d.ref(typ.Elem(), request)}
	case reflect.Map:
		value := object{}
		if typ.Elem().Kind() != reflect.Interface {
			value = d.ref(typ.Elem(), request)
		}
		if typ.Elem().Kind() == reflect.Pointer {
			value["nullable"] = true
		}
		return object{"type": "object", "additionalProperties": value}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint64, reflect.Uint32:
		return object{"type": "integer", "minimum": 0}
	case reflect.Struct:
	default:
		d.t.Fatalf("openapi: what is a %v in JSON?", typ)
	}
	if typ == reflect.TypeFor[time.Time]() {
		return object{"type": "string", "format": "date-time"}
	}
	name := typ.Name()
	if name != "" && d.schemas[name] != nil {
		return object{"$ref": "#/components/schemas/" + name}
	}
	properties, required := object{}, []string{}
	if name != "" {
		d.schemas[name] = object{} // it may be within itself
	}
	d.fields(typ, request, properties, &required)
	schema := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		schema["required"] = required
	}
	if request {
		schema["additionalProperties"] = false
	}
	if name == "" {
		return schema
	}
	schema["description"] = d.comment(name)
	d.schemas[name] = schema
	return object{"$ref": "#/components/schemas/" + name}
}

// fields adds those of a struct, of embedded ones too.
func (d *describer) fields(typ reflect.Type, request bool, properties object, required *[]string) {
	for f := range typ.Fields() {
		tag, tagged := f.Tag.Lookup("json")
		name, opts, _ := strings.Cut(tag, ",")
		switch {
		case f.Anonymous && !tagged:
			d.fields(f.Type, request, properties, required)
			continue
		case name == "-":
			continue
		case name == "":
			d.t.Fatalf("openapi: %v.%s has no name in JSON", typ, f.Name)
		}
		if _, twice := properties[name]; twice {
			d.t.Fatalf("openapi: %v has %q twice: one of them is not sent", typ, name)
		}
		schema := d.ref(f.Type, request)
		about := d.comment(typ.Name() + "." + f.Name)
		switch {
		case about == "":
		case schema["$ref"] != nil: // in 3.0 nothing may stand beside it
			schema = object{"allOf": []object{schema}, "description": about}
		default:
			schema["description"] = about
		}
		properties[name] = schema
		if opts == "" {
			*required = append(*required, name)
		}
	}
}

// comment is what the source says of a type or a field, as a sentence.
func (d *describer) comment(of string) string {
	text := strings.Join(strings.Fields(d.comments[of]), " ")
	text = strings.NewReplacer("[", "", "]", "").Replace(text)
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// comments reads those of package api.
func comments(t *testing.T) map[string]string {
	files, err := filepath.Glob("../api/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no source of package api: ", err)
	}
	all := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			g, ok := n.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				return true
			}
			spec := g.Specs[0].(*ast.TypeSpec)
			all[spec.Name.Name] = cmp.Or(spec.Doc.Text(), g.Doc.Text())
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return false
			}
			for _, field := range st.Fields.List {
				for _, name := range field.Names {
					all[spec.Name.Name+"."+name.Name] = cmp.Or(field.Doc.Text(), field.Comment.Text())
				}
			}
			return false
		})
	}
	return all
}

// jsonTypes are the types of package api that have names in JSON.
func jsonTypes(t *testing.T) (names []string) {
	files, err := filepath.Glob("../api/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, part := range strings.Split(string(b), "\ntype ")[1:] {
			name, rest, _ := strings.Cut(part, " ")
			if body, _, _ := strings.Cut(rest, "\n}"); strings.HasPrefix(body, "struct {") && strings.Contains(body, "`json:\"") {
				names = append(names, name)
			}
		}
	}
	if len(names) < 30 {
		t.Fatalf("found only %q", names)
	}
	return names
}

func TestOpenAPIIsOfTheTypes(t *testing.T) {
	doc := document(t)
	// Types that stand in others only, or are no answer of their own.
	within := []string{"Service", "InstanceKey", "Backup"}
	for _, name := range jsonTypes(t) {
		if schemas := doc["components"].(object)["schemas"].(object); (schemas[name] != nil) == slices.Contains(within, name) {
			t.Errorf("type %s: in the document %v", name, schemas[name] != nil)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(b.Bytes(), openAPI) {
		t.Error("openapi.json is not what the types and the table of openapi_test.go say: go test ./pkg/httpapi -run TestOpenAPI -update, and look at what changes")
	}
}

// What is in the document the server has, and the other way round: paths and
// methods, and parameters.
func TestOpenAPIIsTheServer(t *testing.T) {
	if *update {
		t.Skip("the document that is in the binary is the old one")
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name string }
		}
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	var done []string
	f := newFixture(t, func(o *Options) { o.Native = fakeNative(&done) }, operate, withClients(&[]Subscribed{}))
	var has, says []string
	for _, rt := range f.nativeTable() {
		has = append(has, rt.method+" "+rt.path)
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			call := strings.ToUpper(method) + " " + path
			says = append(says, call)
			var names []string
			for _, p := range op.Parameters {
				names = append(names, p.Name)
			}
			slices.Sort(names)
			// An unknown parameter is answered with those that are known.
			body, kind := "{}", nativeJSON
			if path == "/restore" {
				kind = "Content-Type: " + api.BackupType
			}
			w := f.do(strings.ToUpper(method), api.Path+path+"?nonsense=1", body, kind)
			var e struct{ Error api.Error }
			_ = json.Unmarshal(w.Body.Bytes(), &e)
			known := []string{}
			if list, ok := strings.CutPrefix(e.Error.Hint, "known are "); ok {
				known = strings.Split(list, ", ")
			}
			slices.Sort(known)
			if w.Code != 400 || !slices.Equal(known, names) && len(known)+len(names) > 0 {
				t.Errorf("%s takes %q, the document says %q (%d %s)", call, known, names, w.Code, w.Body)
			}
		}
	}
	slices.Sort(has)
	slices.Sort(says)
	if !slices.Equal(has, says) {
		t.Errorf("the server has %q\nthe document %q", has, says)
	}
	if len(done) > 0 {
		t.Errorf("done: %q", done)
	}
	w := f.do("GET", api.Path+"/openapi.json", "")
	var sent, is any
	if json.Unmarshal(w.Body.Bytes(), &sent) != nil || json.Unmarshal(openAPI, &is) != nil || !reflect.DeepEqual(sent, is) || w.Header().Get("Content-Type") != js {
		t.Errorf("the document is sent as %.100s", w.Body)
	}
}
