// Package nacos is the wire format of Nacos 2.x and 3.x naming clients: the
// gRPC payload, the requests and responses in it, their JSON, the error codes
// and the checks that decide what a server accepts.
//
// Invariant: nothing here keeps state or does I/O, and every byte that leaves
// is JSON that all SDKs decode: no null, no NaN, the numbers as Java prints
// them (grpc-protocol §0 rule 4).
//
// Start reading at [Payload]; requests are in request.go, responses in
// response.go, the list of hosts in serviceinfo.go.
package nacos
