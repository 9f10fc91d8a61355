package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A shape is how the text of an error is dressed. Nacos has one for each layer
// that may refuse a request (golden scenarios 03, 75), and clients search some
// of the texts (http-api §3.7). What handlers refuse, v2 and v3 put into a
// Result with a code.
type shape uint8

const (
	plain       shape = iota // by a handler: the text
	bare                     // by a filter before it: the text without a content type
	spring                   // by the framework: its JSON
	native                   // ours: not part of the Nacos API
	shapeRest                // by a handler of v1's core and accounts: a RestResult
	shapeResult              // by a handler of v2 and v3 that has a code and a message of its own
)

// An apiError is an answer other than success.
type apiError struct {
	status int
	shape  shape
	text   string // native: "code: message"
	code   int    // in v2 and v3; 0: codeServer, and nothing that v1 puts into its JSON
	data   string // in v2 and v3 in place of text, unless ""
	hint   string // native only: what to do about it
	server string // native only: whom to ask instead; mostly ""
}

func (e *apiError) Error() string { return e.text }

// Codes of v2 and v3 (http-api §3.6). Each has its message.
const (
	codeMissing          = 10000
	codeDenied           = 10001
	codeParam            = 20002
	codeMediaType        = 20003
	codeNotFound         = 20004
	codeConflict         = 20005
	codeWeight           = 21001
	codeInstanceMetadata = 21002
	codeInstanceUnknown  = 21003
	codeInstance         = 21004
	codeServiceMetadata  = 21005
	codeSelector         = 21006
	codeServiceExists    = 21007
	codeServiceUnknown   = 21008
	codeServiceNotEmpty  = 21009
	codeNamespaceIllegal = 22000
	codeNamespaceUnknown = 22001
	codeNamespaceExists  = 22002
	codeIllegalState     = 23000
	codeServer           = 30000
)

var messages = map[int]string{
	codeMissing: "parameter missing", codeParam: "parameter validate error", codeNotFound: "resource not found",
	codeWeight: "weight error", codeInstanceMetadata: "instance metadata error", codeInstanceUnknown: "instance not found", codeInstance: "instance error",
	codeServiceMetadata: "service metadata error", codeSelector: "selector error", codeServiceExists: "service already exist",
	codeServiceUnknown: "service not exist", codeServiceNotEmpty: "service delete failure", codeServer: "server error",
	codeDenied: "access denied", codeMediaType: "media type error", codeConflict: "resource conflict", codeIllegalState: "illegal state",
	codeNamespaceIllegal: "illegal namespace", codeNamespaceUnknown: "namespace not exist", codeNamespaceExists: "namespace already exist",
}

// The table of errors. Each is made here and nowhere else.

// errMissing is about a parameter that a handler looks up.
func errMissing(param string) error {
	return &apiError{status: http.StatusBadRequest, text: "Param '" + param + "' is required.",
		code: codeMissing, data: "Required parameter '" + param + "' type " + javaType(param) + " is not present"}
}

// errMissingDeclared is about one that the framework asks for.
func errMissingDeclared(param string) error {
	return &apiError{status: http.StatusBadRequest, text: "Parameter '" + param + "' is missing",
		code: codeMissing, data: "Required request parameter '" + param + "' for method parameter type " + javaType(param) + " is not present"}
}

// errMissingSwitch is errMissing in the words of switches.
func errMissingSwitch(param string) error {
	return &apiError{status: http.StatusBadRequest, text: "Parameter '" + param + "' is missing",
		code: codeMissing, data: "Required parameter '" + param + "' type String is not present"}
}

func javaType(param string) string {
	switch param {
	case "port", "checkPort":
		return "Integer"
	case "weight":
		return "Double"
	case "healthy", "enabled", "useInstancePort4Check":
		return "Boolean"
	}
	return "String"
}

// errParam is a refusal of the parameter check.
func errParam(err error) error {
	return &apiError{status: http.StatusBadRequest, shape: bare, text: err.Error() + "\r\n"}
}

// errValue is a refusal of a handler.
func errValue(err error) error {
	return &apiError{status: http.StatusBadRequest, text: clip(err.Error()), code: codeParam}
}

// errInstance is a refusal of an instance.
func errInstance(err error) error {
	code := codeInstance
	if err == nacos.ErrWeight {
		code = codeWeight
	}
	return &apiError{status: http.StatusBadRequest, text: err.Error(), code: code}
}

func errNumber(value string) error {
	return &apiError{status: http.StatusBadRequest, text: `For input string: "` + clip(value) + `"`, code: codeParam}
}

func errLogLevel(level string) error {
	return &apiError{status: http.StatusBadRequest, text: "Param 'logLevel' is illegal, it should be TRACE, DEBUG, INFO, WARN, ERROR or OFF: " + clip(level), code: codeParam}
}

func errFlag(param, value string) error {
	return &apiError{status: http.StatusBadRequest, text: "Param '" + param + "' is illegal, it should be true or false: " + clip(value), code: codeParam}
}

// errMetadata has the code of what the metadata is of.
func errMetadata(value string, code int) error {
	return &apiError{status: http.StatusBadRequest, text: "metadata format incorrect:" + clip(value), code: code}
}

func errSelector(err error) error {
	return &apiError{status: http.StatusBadRequest, text: err.Error(), code: codeSelector}
}

func errExpression(err error) error {
	return &apiError{status: http.StatusBadRequest, text: "Param 'expr' is illegal, it should be a regular expression: " + clip(err.Error()), code: codeParam}
}

// errName is a refusal of the filter that splits group@@name.
func errName(reason string) error {
	why := "Param 'serviceName' is illegal, " + reason
	return &apiError{status: http.StatusBadRequest, shape: spring, text: "Service name filter error,caused: " + why + ";", code: codeParam, data: why}
}

// errPage is a refusal of a page of a list.
func errPage(param string, n int) error {
	return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf("Required parameter '%s' should be positive integer, current is %d", param, n), code: codeParam}
}

func errNoService(key registry.ServiceKey, ephemeral bool) error {
	return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf(
		"service not found, namespace: %s, service: Service{namespace='%s', group='%s', name='%s', ephemeral=%t, revision=0}",
		key.Namespace, key.Namespace, key.Group, key.Name, ephemeral), code: codeInstance}
}

// errServiceNotFound is the answer to who asks for a service, errServiceUnknown
// to who wants to change it, errServiceMissing to who wants its instances.
func errServiceNotFound(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: "service not found, namespace: " + key.Namespace + ", serviceName: " + key.Grouped(), code: codeServiceUnknown}
}

func errServiceUnknown(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: "service " + key.Grouped() + " not found!", code: codeServiceUnknown}
}

func errServiceMissing(key registry.ServiceKey) error {
	return &apiError{status: http.StatusNotFound, text: "service " + key.Grouped() + " is not found!"}
}

func errClusterMissing(name string) error {
	return &apiError{status: http.StatusNotFound, text: "cluster " + clip(name) + " is not found!"}
}

func errNoServiceOfCluster(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: "service not found groupName: " + key.Group + ",serviceName: " + key.Name}
}

func errServiceExists(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: "specified service " + key.Grouped() + " already exists!", code: codeServiceExists}
}

func errServiceNotEmpty(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: "Service " + key.Grouped() + " is not empty, can't be delete. Please unregister instance first", code: codeServiceNotEmpty}
}

// errChecked: the health of an instance cannot be set while something checks it.
func errChecked(key registry.ServiceKey, cluster string) error {
	return &apiError{status: http.StatusBadRequest, text: "health check is still working, service: " + key.Grouped() + ", cluster: " + cluster}
}

// errEphemeral: an instance of that kind is not for a persistent service.
func errEphemeral(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: nacos.RefusedEphemeral(key, false)}
}

// errPersistent is errEphemeral the other way round.
func errPersistent(key registry.ServiceKey) error {
	return &apiError{status: http.StatusBadRequest, text: nacos.RefusedPersistent(key)}
}

// errEvicted: an operator evicted the instance.
func errEvicted(key registry.ServiceKey, at registry.InstanceKey) error {
	return &apiError{status: http.StatusBadRequest, text: nacos.RefusedEvicted(key, at, 1), code: codeInstance}
}

// errRefused is a write that the log has not taken, as far as it means the same
// for all of them. Clients try a 500 again at another server.
func errRefused(r Refusal) error {
	switch r.Code {
	case NoLeader: // semantics R8: clients know its text
		return &apiError{status: http.StatusInternalServerError, text: "errCode: 500, errMsg: " + nacos.NoLeader + " "}
	case UnknownOutcome:
		return &apiError{status: http.StatusInternalServerError,
			text: "errCode: 500, errMsg: it is not known whether this was written, look before you write again: " + r.Text + " "}
	case NotUnderstood:
		return &apiError{status: http.StatusServiceUnavailable, text: "some nodes of the cluster are of an older release and cannot carry this out yet: " + r.Text}
	}
	return &apiError{status: http.StatusBadRequest, text: r.Text, code: codeParam}
}

func errNoInstances(key registry.ServiceKey, cluster string) error {
	return &apiError{status: http.StatusNotFound, text: "no ips found for cluster " + cluster + " in service " + key.Grouped(), code: codeNotFound}
}

func errNoClient(id string) error {
	return &apiError{status: http.StatusNotFound, text: "clientId [ " + clip(id) + " ] not exist", code: codeNotFound}
}

func errNoAPI(r *http.Request) error {
	return &apiError{status: http.StatusNotImplemented, shape: spring, text: "no such api:" + r.Method + ":" + r.URL.EscapedPath()}
}

func errMethod(r *http.Request) error {
	return &apiError{status: http.StatusMethodNotAllowed, shape: spring, text: "Method '" + r.Method + "' is not supported."}
}

// errRequired is a refusal by the framework.
func errRequired(param string) error {
	return &apiError{status: http.StatusBadRequest, shape: spring, text: "Required parameter '" + param + "' is not present."}
}

func errTooLarge(maxBytes int64) error {
	return &apiError{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf(
		"request body is over the limit of %d bytes: that of --max-request-bytes, and never above 1 MiB", maxBytes)}
}

func errNotReady(reason string) error {
	return &apiError{status: http.StatusServiceUnavailable, shape: bare, text: "server is DOWN now, detailed error message: " + reason}
}

// errStatus: an operator has said that the server is not up. The blank is
// missing in Nacos as well (golden scenario 75).
func errStatus(status string) error {
	return &apiError{status: http.StatusServiceUnavailable, shape: bare, text: "server is " + status + "now, please try again later!"}
}

// errNative is a request of the native API that makes no sense.
func errNative(message, hint string) error {
	return &apiError{status: http.StatusBadRequest, shape: native, text: api.CodeBadRequest + ": " + message, hint: hint}
}

func errNoNative(r *http.Request, paths []string) error {
	return &apiError{status: http.StatusNotFound, shape: native, text: api.CodeNotFound + ": the native API has no " + clip(r.URL.EscapedPath()),
		hint: "this release has " + strings.Join(paths, ", ") + " below " + api.Path}
}

func errNativeMethod(r *http.Request, allowed string) error {
	return &apiError{status: http.StatusMethodNotAllowed, shape: native, text: api.CodeMethod + ": " + clip(r.Method) + " is not for " + clip(r.URL.EscapedPath()),
		hint: "use " + allowed}
}

func errNativeTooLarge(maxBytes int64) error {
	return &apiError{status: http.StatusRequestEntityTooLarge, shape: native, text: fmt.Sprintf("%s: the body is over the limit of %d bytes", api.CodeTooLarge, maxBytes),
		hint: "the requests of this API take less than 10,000"}
}

func errContentType(want string) error {
	return &apiError{status: http.StatusUnsupportedMediaType, shape: native, text: api.CodeContentType + ": the body must be " + want,
		hint: "send Content-Type: " + want}
}

// errNativeRefused is errRefused for the native API.
func errNativeRefused(r Refusal) error {
	e := &apiError{status: http.StatusConflict, shape: native, text: api.CodeConflict + ": " + r.Text}
	switch r.Code {
	case NoLeader:
		e.status, e.hint = http.StatusServiceUnavailable, r.Hint
		e.text = api.CodeNoLeader + ": the log of the cluster has no leader: " + nacos.NoLeader
	case UnknownOutcome:
		e.status, e.hint = http.StatusGatewayTimeout, "look before you write again"
		e.text = api.CodeUnknownOutcome + ": it is not known whether this was written: " + r.Text
	case NotUnderstood:
		e.status, e.hint = http.StatusServiceUnavailable, "starling members shows their releases"
		e.text = api.CodeNotUnderstood + ": some nodes of the cluster are of an older release and cannot carry this out yet"
	case NotFound:
		e.status, e.text = http.StatusNotFound, api.CodeNotFound+": "+r.Text
	case Invalid:
		e.status, e.text = http.StatusBadRequest, api.CodeBadRequest+": "+r.Text
	}
	return e
}

func errBackupTooLarge(maxBytes int64) error {
	return &apiError{status: http.StatusRequestEntityTooLarge, shape: native, text: fmt.Sprintf("%s: the backup is over the limit of %d bytes", api.CodeTooLarge, maxBytes),
		hint: "--max-restore-bytes of the node raises it"}
}

func errStillAlive(name string) error {
	return &apiError{status: http.StatusConflict, shape: native, text: api.CodeConflict + ": " + clip(name) + " is alive, and would be taken in again at once",
		hint: "stop it first, with SIGTERM"}
}

func errNoSuchService(key registry.ServiceKey) error {
	return &apiError{status: http.StatusNotFound, shape: native, text: api.CodeNotFound + ": there is no service " + key.Name + " in group " + key.Group + ", namespace " + key.Namespace,
		hint: "starling services --all-namespaces shows what there is"}
}

func errNoSuchInstance(key registry.ServiceKey, ip string, port int, hint string) error {
	return &apiError{status: http.StatusNotFound, shape: native, text: fmt.Sprintf("%s: no instance %s is in service %s in group %s, namespace %s",
		api.CodeNotFound, clip(api.JoinAddress(ip, port)), key.Name, key.Group, key.Namespace), hint: hint}
}

// errSeveralClusters: the address alone does not say which instance is meant.
func errSeveralClusters(ip string, port int, clusters []string) error {
	return &apiError{status: http.StatusBadRequest, shape: native, text: api.CodeBadRequest + ": " + clip(api.JoinAddress(ip, port)) + " stands in several clusters: " + clip(strings.Join(clusters, ", ")),
		hint: "say which cluster is meant"}
}

func errNotEvicted(key registry.ServiceKey, ip string, port int) error {
	return &apiError{status: http.StatusNotFound, shape: native, text: fmt.Sprintf("%s: %s of service %s in group %s, namespace %s is not evicted",
		api.CodeNotFound, clip(api.JoinAddress(ip, port)), key.Name, key.Group, key.Namespace), hint: "starling evict --list shows what is"}
}

// errHalfWritten: of two writes that a request took, the second failed.
func errHalfWritten(why error) error {
	text := errNativeInternal.text
	if e, ok := errors.AsType[*apiError](why); ok {
		text = e.text
	}
	_, text, _ = strings.Cut(text, ": ")
	return &apiError{status: http.StatusGatewayTimeout, shape: native, text: api.CodeUnknownOutcome + ": a part of this is written, the rest is not, or may not be: " + text,
		hint: "look before you write again"}
}

func errNoSuchNamespace(id, hint string) error {
	return &apiError{status: http.StatusNotFound, shape: native, text: api.CodeNotFound + ": nobody has made a namespace " + clip(id), hint: hint}
}

func errNamespaceIsThere(id string) error {
	return &apiError{status: http.StatusConflict, shape: native, text: api.CodeConflict + ": there is a namespace " + clip(id), hint: "starling namespaces shows them"}
}

// errUnreachable: the client is kept by another node. Whether that has carried
// out the request is not known.
func errUnreachable(node string) error {
	return &apiError{status: http.StatusServiceUnavailable, text: "the node that keeps this HTTP client cannot be reached at the moment, try again: " + node}
}

var (
	errPublicStays = &apiError{status: http.StatusConflict, shape: native, text: api.CodeConflict + ": the namespace public is always there",
		hint: "others can be removed"}
	errCrossSite = &apiError{status: http.StatusForbidden, shape: native, text: api.CodeForbidden + ": a browser sent this from another site",
		hint: "use the command line, or a page of this server"}
	errRestoring = &apiError{status: http.StatusConflict, shape: native, text: api.CodeConflict + ": another restore is under way",
		hint: "wait until it is over"}
	errBackups = &apiError{status: http.StatusConflict, shape: native, text: api.CodeConflict + ": too many backups are under way",
		hint: "wait until one of them is over"}
	errBackupHead = &apiError{status: http.StatusMethodNotAllowed, shape: native, text: api.CodeMethod + ": HEAD is not for a backup: it would be made in vain",
		hint: "use GET"}
	errNoLogLevel = &apiError{status: http.StatusNotImplemented, text: "the log level of this node cannot be changed while it runs"}
	errNotInNode  = &apiError{status: http.StatusNotImplemented, shape: native, text: api.CodeNotOffered + ": this node does not offer this",
		hint: "ask a node of a release that has it"}
	errNativeInternal = &apiError{status: http.StatusInternalServerError, shape: native, text: api.CodeInternal + ": something went wrong in the server",
		hint: "its log has the reason"}
	errNativeTimeout = &apiError{status: http.StatusGatewayTimeout, shape: native, text: api.CodeTimeout + ": another node did not answer in time",
		hint: "starling members tells which nodes are there"}

	// errOtherSite: a page that an operator looks at must not write to a server
	// that only the operator reaches.
	errOtherSite = &apiError{status: http.StatusForbidden, text: "a browser sent this from another site", code: codeDenied}
	errNoMatch   = &apiError{status: http.StatusNotFound, text: "no matched ip found!", code: codeNotFound}
	// errNotRegistered asks a client to register; it is no failure (http-api §8.1).
	errNotRegistered = &apiError{status: http.StatusOK, code: codeInstanceUnknown}
	errNoGroup       = errName("groupName can't be empty")
	errNotGrouped    = errName("it should be format as 'groupName@@serviceName'")
	// errNameNotGrouped is what handlers say that take no other name.
	errNameNotGrouped = &apiError{status: http.StatusBadRequest, text: "Param 'serviceName' is illegal, it should be format as 'groupName@@serviceName'", code: codeParam}

	errAdminStays = &apiError{status: http.StatusBadRequest, text: "cannot delete admin: " + adminName, code: codeParam}
	// errPasswords: SDKs ask another server, or again later.
	errPasswords = &apiError{status: http.StatusServiceUnavailable, text: "too many passwords are being checked at the moment, try again"}
	errNoMember  = &apiError{status: http.StatusServiceUnavailable, text: "this node does not know yet which members there are"}
	errMediaType = &apiError{status: http.StatusUnsupportedMediaType, text: "Content-Type must be application/json", code: codeMediaType}
	errJSON      = &apiError{status: http.StatusBadRequest, text: "request body is not the JSON that this takes", code: codeParam}
	errNoConfig  = &apiError{status: http.StatusNotImplemented, text: "this is a naming server: it has no configuration, ask a Nacos server for that"}

	errTooMany   = &apiError{status: http.StatusBadRequest, text: "request has too many parameters"}
	errBody      = &apiError{status: http.StatusBadRequest, text: "request body cannot be read"}
	errNotFound  = &apiError{status: http.StatusNotFound, shape: spring, text: "No message available"}
	errInternal  = &apiError{status: http.StatusInternalServerError, text: "caused: internal error;"}
	errNotServed = &apiError{status: http.StatusNotFound, shape: native, text: api.CodeNotFound + ": this is only served to the machine itself",
		hint: "ask over a loopback address, without a proxy"}
)

// refuse is what a handler of core or accounts cannot do, or not as asked.
func (c *call) refuse(status int, text string) error {
	if c.version == v1 {
		return &apiError{status: status, shape: shapeRest, text: text}
	}
	code := map[int]int{http.StatusBadRequest: codeParam, http.StatusForbidden: codeDenied, http.StatusConflict: codeConflict}[status]
	return &apiError{status: status, text: text, code: code}
}

// errDisabled is about calls that Nacos has disabled (golden scenario 19).
func errDisabled(name string) error {
	return &apiError{status: http.StatusOK, shape: shapeRest, text: name + " API not allow to use temporarily.", code: http.StatusMethodNotAllowed}
}

// errLookup is about a way to find members that there is not. v1 says so with
// status 200 (golden scenario 19).
func (c *call) errLookup(kind string) error {
	text := "The addressing mode exists : " + clip(kind) + ", just support : [[file, address-server]]"
	if c.version == v1 {
		return &apiError{status: http.StatusOK, shape: shapeRest, text: text, code: http.StatusInternalServerError}
	}
	return c.refuse(http.StatusBadRequest, text)
}

func errMemberState(state string) error {
	return &apiError{status: http.StatusBadRequest, text: "Illegal state: " + clip(state), code: codeIllegalState}
}

// errNotReadyV1 and errNotReadyInBody are what probes are told.
func errNotReadyV1(reason string) error {
	return &apiError{status: http.StatusInternalServerError, text: notInReadiness + ": " + reason}
}

const notInReadiness = "naming not in readiness"

// errSaidNotUp: an operator has said that the server is not up.
func errSaidNotUp(v version) error {
	if v == v1 {
		return &apiError{status: http.StatusInternalServerError, text: notInReadiness}
	}
	return errNotReadyInBody(http.StatusOK, notInReadiness)
}

func errNotReadyInBody(status int, reason string) error {
	return &apiError{status: status, shape: shapeResult, text: reason, code: codeServer}
}

// isNamespaceRefusal is what v1 calls false.
func isNamespaceRefusal(err error) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && (e.code == codeNamespaceIllegal || e.code == codeNamespaceExists)
}

func errIllegalNamespace(reason string) error {
	return &apiError{status: http.StatusBadRequest, text: reason, code: codeNamespaceIllegal}
}

func errNoNamespace(id string) error {
	return &apiError{status: http.StatusNotFound, text: "namespaceId [ " + clip(id) + " ] not exist", code: codeNamespaceUnknown}
}

func errNamespaceExists(id string) error {
	return &apiError{status: http.StatusBadRequest, text: "namespaceId [" + id + "] already exist.", code: codeNamespaceExists}
}

// errLogin tells nobody whether it is the name or the password. Some clients
// log in again at a 403.
func (c *call) errLogin() error {
	if c.version == v1 {
		return &apiError{status: http.StatusForbidden, text: "unknown user!"}
	}
	return &apiError{status: http.StatusForbidden, shape: spring, text: "Access Denied"}
}

// errMissingAccount is about a parameter of the calls about accounts.
func (c *call) errMissingAccount(param string) error {
	if c.version == v1 {
		return errRequired(param)
	}
	return errMissing(param)
}

func errUserExists(name string) error {
	return &apiError{status: http.StatusBadRequest, text: "user '" + name + "' already exist!", code: codeParam}
}

func errUserUnknown(name string) error {
	return &apiError{status: http.StatusBadRequest, text: "user " + name + " not exist!", code: codeParam}
}

// errAdminExists has status 200 in Nacos, too (golden scenario 21).
func (c *call) errAdminExists() error {
	e := &apiError{status: http.StatusOK, shape: shapeRest, text: "have admin user cannot use it", code: http.StatusConflict}
	if c.version == v3 {
		e.shape, e.text = shapeResult, e.text+"."
	}
	return e
}

// clip bounds what of a request is repeated in an answer.
func clip(s string) string {
	const most = 1024
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// write dresses an error for whom it is.
func (e *apiError) write(w http.ResponseWriter, r *http.Request, v version) {
	if (v == v2 || v == v3) && (e.shape == plain || e.shape == spring && e.code != 0) {
		code := cmp.Or(e.code, codeServer)
		b := strconv.AppendInt([]byte(`{"code":`), int64(code), 10)
		b = nacos.AppendString(append(b, `,"message":`...), messages[code])
		if b = append(b, `,"data":`...); e.text == "" {
			b = append(b, "null"...)
		} else {
			b = nacos.AppendString(b, cmp.Or(e.data, e.text))
		}
		writeJSON(w, e.status, append(b, '}'))
		return
	}
	switch e.shape {
	case shapeRest:
		writeJSON(w, e.status, restResult(cmp.Or(e.code, e.status), e.text, []byte("null")))
	case shapeResult:
		b := strconv.AppendInt([]byte(`{"code":`), int64(e.code), 10)
		b = nacos.AppendString(append(b, `,"message":`...), e.text)
		writeJSON(w, e.status, append(b, `,"data":null}`...))
	case bare:
		// net/http would guess a content type if there were none at all.
		w.Header()["Content-Type"] = nil
		w.WriteHeader(e.status)
		_, _ = w.Write([]byte(e.text))
	case spring:
		b := append(make([]byte, 0, 256), `{"timestamp":"`...)
		b = time.Now().UTC().AppendFormat(b, "2006-01-02T15:04:05.000-07:00")
		b = strconv.AppendInt(append(b, `","status":`...), int64(e.status), 10)
		b = nacos.AppendString(append(b, `,"error":`...), http.StatusText(e.status))
		b = nacos.AppendString(append(b, `,"message":`...), e.text)
		b = nacos.AppendString(append(b, `,"path":`...), r.URL.EscapedPath())
		writeJSON(w, e.status, append(b, '}'))
	case native:
		code, message, _ := strings.Cut(e.text, ": ")
		b := nacos.AppendString([]byte(`{"error":{"code":`), code)
		b = nacos.AppendString(append(b, `,"message":`...), message)
		b = nacos.AppendString(append(b, `,"hint":`...), e.hint)
		if e.server != "" {
			b = nacos.AppendString(append(b, `,"server":`...), e.server)
		}
		writeJSON(w, e.status, append(b, "}}"...))
	default:
		writeText(w, r, e.status, e.text)
	}
}

// restResult is what v1 puts around answers of core and accounts; no message is
// null.
func restResult(code int, message string, data []byte) []byte {
	b := strconv.AppendInt([]byte(`{"code":`), int64(code), 10)
	if b = append(b, `,"message":`...); message == "" {
		b = append(b, "null"...)
	} else {
		b = nacos.AppendString(b, message)
	}
	b = append(append(b, `,"data":`...), data...)
	return append(b, `,"noRight":false}`...)
}

// writeText writes a text of the v1 API. Nacos labels it as the client likes
// it, without changing it (golden scenario 03); a client that prefers
// something else, such as a browser, gets it as text.
func writeText(w http.ResponseWriter, r *http.Request, status int, text string) {
	ct := "text/plain;charset=UTF-8"
	preferred, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	preferred, _, _ = strings.Cut(preferred, ";")
	if strings.TrimSpace(preferred) == "application/json" {
		ct = "application/json"
	}
	w.Header().Set("Content-Type", ct)
	w.Header().Set("X-Content-Type-Options", "nosniff") // a text may repeat what came in
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// contentTypeJSON is shared by answers; nobody changes it.
var contentTypeJSON = []string{"application/json"}

func writeJSON(w http.ResponseWriter, status int, b []byte) {
	w.Header()["Content-Type"] = contentTypeJSON
	w.WriteHeader(status)
	_, _ = w.Write(b)
}
