// Package grpcapi speaks the gRPC protocol of Nacos SDKs: it takes their
// connections, answers their requests and sends them pushes.
//
// A connection is one HTTP/2 transport. It carries unary requests and one
// bidirectional stream; a ConnectionSetupRequest on the stream registers it,
// and from then on the connection is the lease of all that its client
// publishes and subscribes to.
//
// Invariant: when a connection is unregistered, its transport is closed, and
// the other way round. A client never sits on a connection that the server has
// forgotten (grpc-protocol §0 rule 12).
//
// What a client publishes goes with its connection, unless the client is
// expected elsewhere: then it is marked as moving and goes later (moving.go,
// design §6). A node that stops asks its clients to move first (drain.go).
//
// Persistent instances are not its business but the log's: they pass through
// (persistent.go).
//
// Start reading at [Server.request], the path of a registration, and the table
// in handlers.go; conn.send is the path of a push.
package grpcapi
