package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// An attack is one way to mistreat a server. run says what was seen, and
// returns an error if that is not what is expected. Every attack ends by
// itself, and has closed its connections then.
type attack struct {
	name, expect string
	run          func(*arena) (seen string, err error)
	beside       bool  // waits more than it works: runs beside the others
	long         bool  // only where there is time
	grows        int64 // what the server's memory may grow by meanwhile; 0: 192 MiB
}

var attacks = []attack{
	{name: "empty bodies", expect: "502 for empty and missing bodies, the connection stays", run: emptyBodies},
	{name: "broken protobuf", expect: "an answer or status Internal, the transport stays", run: brokenProtobuf},
	{name: "broken JSON", expect: "502 for a body cut anywhere, nothing registered", run: brokenJSON},
	{name: "deep JSON", expect: "502, or accepted where the depth is in what is ignored; within a second", run: deepJSON},
	{name: "wrong types", expect: "a well-formed answer for every value of every field, never 'internal error'", run: wrongTypes},
	{name: "nulls and doubles", expect: "null is missing, of doubles the last counts, no null comes back", run: nullsAndDoubles},
	{name: "unknown types", expect: "302 or 502 whatever type and module", run: unknownTypes},
	{name: "server's messages", expect: "unary 302, on the stream ignored", run: serversMessages},
	{name: "big bodies", expect: "10 MiB are taken, more is RESOURCE_EXHAUSTED, the connection stays", run: bigBodies},
	{name: "gzip bombs", expect: "RESOURCE_EXHAUSTED, memory stays low", run: gzipBombs},
	{name: "half messages", expect: "a connection cannot make the server hold more than a few messages", run: halfMessages, grows: 256 << 20},
	{name: "acks", expect: "ignored when unasked for, doubled or another's", run: strangeAcks},
	{name: "echoes", expect: "what is kept or repeated of a request is bounded", run: echoes, grows: 384 << 20}, // some copies of 9 MiB each, times three for GOGC=200

	{name: "names", expect: "what is accepted is listed by the same name and can be removed by it, over gRPC and HTTP", run: names},
	{name: "numbers", expect: "refused, or given back as JSON numbers", run: numbers},
	{name: "metadata", expect: "more than 1,024 characters refused; all else comes back as it was", run: metadata},
	{name: "big batches", expect: "10,000 are taken, above the limit 503, a bad one spoils all", run: bigBatches, grows: 256 << 20},

	{name: "never acks", expect: "closed after --push-ack-timeout", run: neverAcks},
	{name: "reads nothing", expect: "stream or socket: closed after --push-ack-timeout", run: readsNothing},
	{name: "half-open", expect: "a frozen client goes after a few keepalive times, one that has shut its side at once", run: halfOpen},
	{name: "setups", expect: "a second one and one for another change nothing; a broken one ends the stream", run: setups},
	{name: "1,000 streams", expect: "served; more wait for their turn", run: thousandStreams},
	{name: "10,000 subscriptions", expect: "taken, the next is refused with 503, all go with the connection", run: manySubscriptions},
	{name: "3,000 connections", expect: "without setup they are closed after --setup-timeout", run: manyConnections, grows: 256 << 20},
	{name: "come and go", expect: "connections without a word, closed or reset at once, on both ports", run: comeAndGo},
	{name: "no files left", expect: "connections that are there are served, new ones again when there are files", run: noFiles, grows: 256 << 20},
	{name: "unknown services", expect: "queries, subscriptions and registrations under 20,000 names leave nothing", run: unknownServices},
	{name: "not HTTP/2", expect: "TLS, HTTP/1 and noise are closed at once", run: notHTTP2},
	{name: "byte by byte", expect: "a preface that takes 10 s and a request that takes 15 s are closed, slow ones before that are served", run: byteByByte, beside: true},
	{name: "others' instances", expect: "success, and nothing happens to them", run: othersInstances},

	{name: "rapid reset", expect: "served or closed", run: rapidReset},
	{name: "pings", expect: "GOAWAY and closed", run: pings},
	{name: "settings", expect: "answered as fast as they are read, or closed", run: settingsFlood},
	{name: "headers", expect: "too big and endless headers close the transport or reset the stream", run: headers},
	{name: "odd frames", expect: "the transport is closed or the frame is ignored", run: oddFrames},

	{name: "HTTP: huge", expect: "URLs, heads and forms beyond the limit are 4xx or closed", run: hugeHTTP},
	{name: "HTTP: escapes", expect: "no 5xx, valid UTF-8 in answers, what is accepted can be removed", run: escapes},
	{name: "HTTP: parameters", expect: "the first of several counts, arrays are other keys, too many are 400", run: parameters},
	{name: "HTTP: paths", expect: "404 or 501, never a redirect or a file", run: paths},
	{name: "HTTP: methods", expect: "404, 405 or 501", run: methods},
	{name: "HTTP: framing", expect: "400 or closed where length and body differ; pipelined requests are answered in order", run: framing},
	{name: "persistent instances", expect: "what is accepted is shown by all readers, in the history too, and can be removed", run: persistents},
	{name: "HTTP: writes to the log", expect: "absurd values of every parameter are 4xx, never an internal error", run: strangeWrites, beside: true},
	{name: "HTTP: operators' writes", expect: "403 or 415 for what a page of another site can send, 4xx for what makes no sense", run: nativeWrites},
	{name: "HTTP: backups", expect: "many at once are bounded; what is no backup is 400 and changes nothing; a right one survives a restart", run: backups, beside: true},
	{name: "HTTP: probes", expect: "a health check sends one harmless request, whatever its settings", run: probes, beside: true},
	{name: "HTTP: every endpoint", expect: "nothing above 499 but 501, an answer within 2 s that is what it says it is and tells no secret, whatever is sent", run: everyEndpoint},

	{name: "HTTP: slow", expect: "heads are closed after 10 s, bodies after 30 s", run: slowHTTP, beside: true},
}

// parallel runs f n times at once and joins the errors.
func parallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// within runs f and makes it an error if it takes longer.
func within(limit time.Duration, f func() error) error {
	start := time.Now()
	err := f()
	if took := time.Since(start); err == nil && took > limit {
		err = fmt.Errorf("took %v, limit %v", took, limit)
	}
	return err
}
