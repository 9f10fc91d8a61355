// Package wire is one connection to a Nacos-compatible naming server:
// connect, request, take pushes, notice the end.
//
//	conn, err := wire.Dial(ctx, wire.Options{
//		Addr: "127.0.0.1:8848",
//		Push: func(p *nacos.Payload) error { fmt.Printf("%s\n", p.Body); return nil },
//	})
//	if err != nil {
//		return err
//	}
//	defer conn.Close()
//	answer, err := conn.Request(ctx, nacos.TypeSubscribeServiceRequest, body)
//
// A [Conn] does not reconnect and repeats nothing: a server forgets all that a
// connection has published and subscribed to when it ends, so whoever wants to
// go on dials again and says it all again. [Conn.Done] and [Conn.Err] tell when
// and why.
//
// Invariant: a Conn is one transport from beginning to end. gRPC would replace
// a broken transport silently, and the server would not know the new one.
//
// Start reading at [Dial], then Conn.receive.
package wire
