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
//
// Who asks is served from memory: the first read of a service subscribes to it,
// and from then on the server pushes what changes. [Client.Pick] and
// [Client.Select] are for those who choose an instance for each request,
// [Client.Watch] for those who keep connections to all of them.
//
// Errors are [ErrNotConnected], [ErrUnauthorized] and the others of this package,
// for errors.Is; what a server refuses is a [ServerError]. A refusal is final and
// told at once; what fails on the way is tried again within the context's time.
// A context without a deadline counts as one of Config.RequestTimeout for reads,
// and of three times that for what is published.
//
// Goroutines: a client has about a dozen, whatever the number of services and
// watchers, and one more for each [Watcher.C]. Functions of [Client.WatchFunc]
// run on goroutines that there are only while they run; those of [Where] on that
// of who reads or is told; [Metrics], WithDialContext and WithCredentials on any.
//
// What the files, the tables of settings and errors, and the behaviours with their
// tests are is in docs/client.md of the repository.
//
// Start reading at [New], then link.run, reconciler.run and svc.apply.
package client
