package client

import (
	"context"
	"log/slog"
	"time"
)

// stored is a list of a service as a file has it. What it refers to is not
// changed any more by anybody.
type stored struct {
	instances   []Instance // by cluster, ip, port
	lastRefTime int64      // of the server, milliseconds
	cacheMillis int64
	protected   bool
	asOf        time.Time // of a file that was read: when it was written
}

// A diskCache keeps the last list of each service in files. A nil one does
// nothing.
type diskCache struct{}

// openCache has the directory of Config.CacheDir, "off" included (nil), and
// never fails: what cannot be written is told to the log once.
func openCache(dir, namespace string, log *slog.Logger) *diskCache { return nil }

// load reads all that is there (C-11, C-12).
func (c *diskCache) load() map[ServiceID]stored { return nil }

// put writes a list some time later; it never waits for the disk. The last one
// of a service wins.
func (c *diskCache) put(id ServiceID, s stored) {}

// close writes what is left, within the context's time.
func (c *diskCache) close(ctx context.Context) error { return nil }

// writeSnapshot writes files of these lists into a directory, that of
// Client.ExportSnapshot.
func writeSnapshot(dir string, lists map[ServiceID]stored) error { return nil }

// sortInstances brings a list into the order of a snapshot, and of those with
// one identity (ip, port, cluster) keeps the last (D-1). It works in place.
func sortInstances(list []Instance) []Instance { return list }
