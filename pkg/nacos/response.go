package nacos

import "strconv"

// Codes in the fields resultCode and errorCode (grpc-protocol §2.5).
const (
	ResultOK   = 200
	ResultFail = 500

	CodeInvalidServerStatus = 300 // the node is not ready
	CodeUnregistered        = 301 // no setup on this transport
	CodeNoHandler           = 302
	CodeInvalidParam        = 400
	CodeServerError         = 500
	CodeNotImplemented      = 501
	CodeBadGateway          = 502 // malformed request, forbidden sender
	CodeOverThreshold       = 503 // over a limit
	CodeClientDisconnected  = -401
)

// Texts that clients and their tests may match (semantics, appendix B).
const (
	MsgStarting     = "Server is starting,please try later."
	MsgUnregistered = "Connection is unregistered."
	MsgNoHandler    = "RequestHandler Not Found"
	MsgBadJSON      = "errCode: 101, errMsg: Nacos deserialize failed.  "
)

// ErrorResponse makes the answer for what is wrong with the connection or the
// request as a whole. Handler errors have resultCode = errorCode, the others
// resultCode 500 (grpc-protocol §2.5).
func ErrorResponse(resultCode, errorCode int, message string) *Payload {
	return Failure(TypeErrorResponse, resultCode, errorCode, message)
}

// Failure makes a refusal in a given response type. SDKs retry an
// ErrorResponse but take a failure in the request's own response type as the
// last word.
func Failure(typ string, resultCode, errorCode int, message string) *Payload {
	b := make([]byte, 0, 96+len(message))
	b = strconv.AppendInt(append(b, `{"resultCode":`...), int64(resultCode), 10)
	b = strconv.AppendInt(append(b, `,"errorCode":`...), int64(errorCode), 10)
	b = AppendString(append(b, `,"message":`...), message)
	return &Payload{Type: typ, Body: append(b, `,"success":false}`...)}
}

const success = `{"resultCode":200,"errorCode":0,"success":true`

// maxRequestID is the longest id that is repeated; those of SDKs are numbers
// and UUIDs.
const maxRequestID = 256

// begin starts a successful response. The request's id is repeated when there
// was one (cases C37), unless it is absurdly long.
func begin(size int, requestID string) []byte {
	if len(requestID) > maxRequestID {
		requestID = ""
	}
	b := append(make([]byte, 0, len(success)+size+len(requestID)+16), success...)
	if requestID != "" {
		b = AppendString(append(b, `,"requestId":`...), requestID)
	}
	return b
}

// HealthCheckResponse says that the connection is known.
func HealthCheckResponse() *Payload {
	return &Payload{Type: TypeHealthCheckResponse, Body: []byte(success + "}")}
}

// ServerCheckResponse tells a client the id of its connection.
func ServerCheckResponse(connectionID string) *Payload {
	b := AppendString(append(begin(80, ""), `,"connectionId":`...), connectionID)
	return &Payload{Type: TypeServerCheckResponse, Body: append(b, `,"supportAbilityNegotiation":true}`...)}
}

// OperationResponse answers an instance request of the given response type;
// op repeats the operation.
func OperationResponse(typ, op, requestID string) *Payload {
	b := AppendString(append(begin(40, requestID), `,"type":`...), op)
	return &Payload{Type: typ, Body: append(b, '}')}
}

// ServiceListResponse answers with one page of names and the count of all.
func ServiceListResponse(count int, names []string, requestID string) *Payload {
	b := begin(48+len(names)*24, requestID)
	b = strconv.AppendInt(append(b, `,"count":`...), int64(count), 10)
	b = append(b, `,"serviceNames":[`...)
	for i, n := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, n)
	}
	return &Payload{Type: TypeServiceListResponse, Body: append(b, "]}"...)}
}

// QueryServiceResponse answers a query.
func QueryServiceResponse(info ServiceInfo, requestID string) *Payload {
	b := append(begin(24, requestID), `,"serviceInfo":{`...)
	return info.payload(TypeQueryServiceResponse, b, "}")
}

// SubscribeServiceResponse answers a subscription and its end alike.
func SubscribeServiceResponse(info ServiceInfo, requestID string) *Payload {
	b := append(begin(48, requestID), `,"message":"success","serviceInfo":{`...)
	return info.payload(TypeSubscribeServiceResponse, b, "}")
}

// NotifySubscriberRequest pushes a service to a subscriber. Clients need the
// headers, the request id as a string, and the module (grpc-protocol §0 rule 5).
func NotifySubscriberRequest(info ServiceInfo, requestID uint64) *Payload {
	b := make([]byte, 0, 80)
	b = strconv.AppendUint(append(b, `{"headers":{},"requestId":"`...), requestID, 10)
	b = append(b, `","module":"naming","serviceInfo":{`...)
	return info.payload(TypeNotifySubscriberRequest, b, "}")
}

// SetupAckRequest tells a client what the server can do beyond Nacos 2.0; the
// keys are known to SDKs (grpc-protocol §2.3).
func SetupAckRequest(abilities []string) *Payload {
	b := append(make([]byte, 0, 128), `{"headers":{},"abilityTable":{`...)
	for i, a := range abilities {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(AppendString(b, a), ":true"...)
	}
	return &Payload{Type: TypeSetupAckRequest, Body: append(b, `},"module":"internal"}`...)}
}

// ClientDetectionRequest asks a silent client whether it lives.
func ClientDetectionRequest(requestID uint64) *Payload {
	b := strconv.AppendUint([]byte(`{"headers":{},"requestId":"`), requestID, 10)
	return &Payload{Type: TypeClientDetectionRequest, Body: append(b, `","module":"internal"}`...)}
}

// ConnectResetRequest asks a client to connect again, to the given node if
// host is not empty. port is the main port, a string on the wire
// (grpc-protocol §2.7).
func ConnectResetRequest(requestID uint64, connectionID, host string, port int) *Payload {
	b := strconv.AppendUint([]byte(`{"headers":{},"requestId":"`), requestID, 10)
	b = append(b, '"')
	if host != "" {
		b = AppendString(append(b, `,"serverIp":`...), host)
		b = strconv.AppendInt(append(b, `,"serverPort":"`...), int64(port), 10)
		b = append(b, '"')
	}
	b = AppendString(append(b, `,"connectionId":`...), connectionID)
	return &Payload{Type: TypeConnectResetRequest, Body: append(b, `,"module":"internal"}`...)}
}

// LockOperationResponse refuses a lock: locks are not offered.
func LockOperationResponse() *Payload {
	return &Payload{Type: TypeLockOperationResponse,
		Body: []byte(`{"resultCode":500,"errorCode":0,"message":"There is no Handler of such operations!","result":false,"success":false}`)}
}
