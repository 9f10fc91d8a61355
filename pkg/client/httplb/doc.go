// Package httplb lets net/http call services by their names: a transport that
// picks an instance for each request.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	lb, err := httplb.New(c, httplb.Options{})
//	if err != nil {
//		return err
//	}
//	web := &http.Client{Transport: lb}
//	resp, err := web.Get("http://order.starling/v1/orders")
//
// What is a service's name and what is not is told from the URL:
//
//	http://order.starling/path          service order of the group of the options
//	http://com.acme.order.G.starling/   service com.acme.order of group G: what
//	                                    stands before .starling is the group, if
//	                                    there are several parts
//	https://order.starling/             the same over TLS
//	lb://com.acme.order/path            the whole host is the service
//	anything else                       is left to the transport below
//
// An instance with the metadata secure=true is called over TLS in any case.
//
// # When an instance cannot be reached
//
// A request whose connection could not be made goes to another instance, whatever
// its method is, for nothing of it has been sent; if it has a body, then only if
// that can be had again (http.Request.GetBody, which http.NewRequest sets for
// buffers and strings). Nothing else is repeated here: not a response of any
// status, and not a connection that broke later. The instance that could not be
// reached gets no request for a few seconds, unless there is no other.
//
// Start reading at Transport.RoundTrip.
package httplb
