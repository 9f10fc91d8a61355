package api

import "errors"

// An Error is an answer other than success, and its one shape in JSON:
// {"error":{"code":…,"message":…,"hint":…}}. The functions behind the native
// API return one where the caller is to be told; any other error is the
// server's own affair.
type Error struct {
	Status  int    `json:"-"`    // of HTTP
	Code    string `json:"code"` // for programs, such as not_found; new ones may come
	Message string `json:"message"`
	Hint    string `json:"hint"` // what to do about it
	// Server is the HTTP host:port of the node to ask instead, with
	// CodeNotLeader only; "": it is not known.
	Server string `json:"server,omitempty"`
}

// Codes of errors. A program should expect others.
const (
	CodeBadRequest  = "bad_request" // 400: a parameter or the body
	CodeForbidden   = "forbidden"   // 403: a browser sent it from another site
	CodeNotFound    = "not_found"   // 404
	CodeMethod      = "bad_method"  // 405
	CodeConflict    = "conflict"    // 409: not in this state
	CodeNotLeader   = "not_leader"  // 409: only the leader of the log can do this; [Client] asks that one
	CodeNotEmpty    = "not_empty"   // 409: something would be overwritten
	CodeTooLarge    = "too_large"   // 413
	CodeContentType = "bad_type"    // 415: a write that is not application/json
	CodeInternal    = "internal"    // 500
	CodeNotOffered  = "not_offered" // 501: this node does not have it
	CodeUnreachable = "unreachable" // 502: another node is to answer and cannot be reached
	CodeNoLeader    = "no_leader"   // 503: the log has no leader, so nothing can be written to it
	CodeNotReady    = "not_ready"   // 503
	// Of a write: some nodes are of an older release (503); whether it was
	// written is not known, look before you write again (504).
	CodeNotUnderstood  = "not_understood"
	CodeUnknownOutcome = "unknown_outcome"
	CodeTimeout        = "timeout"      // 504: another node is to answer and takes too long
	CodeNotANode       = "not_starling" // made by [Client]: what answers does not speak this API
	CodeCannotReach    = "cannot_reach" // made by [Client]: nothing answers
	CodeUnreadable     = "unreadable"   // made by [Client]: the answer cannot be read
)

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (" + e.Hint + ")"
}

// CodeOf is the code of an error; "" if it is none of this API.
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}
