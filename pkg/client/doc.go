// Package client registers, finds and watches services at Nacos-compatible
// servers.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	lease, err := c.Register(ctx, "order", client.Registration{IP: "10.0.0.1", Port: 8080})
//	one, err := c.Pick(ctx, "order")
//
// The invariant: what is wanted is state, not commands. Registrations and
// subscriptions are what the caller has asked for; whenever a connection comes,
// and whenever the two differ, the server is brought to that.
//
// Lists are immutable, told by full replacement, and say what they are worth
// ([Snapshot.Source], [Snapshot.AsOf]). A client shares nothing with another one
// of the same process.
package client
