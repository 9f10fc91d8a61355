package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
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

const (
	// maxListFile bounds a file that is read, in bytes. A message of a server has
	// at most 10 MiB.
	maxListFile = 64 << 20
	// cachePause is between two rounds of writing: a service that changes all the
	// time costs so many files.
	cachePause = 100 * time.Millisecond
	// unfinished ends the names of files that are being written. Java does not
	// read those that end so; another name that is not of a service would make it
	// stop reading the directory (C-11).
	unfinished = "@@special-url"
)

// A diskCache keeps the last list of each service in files, one for each as the
// Java client does (C-8 … C-11): a file has the old list or the new one whenever
// a process ends. A nil one does nothing.
//
// Files are not synced: after a power failure one may be empty or half, and
// readers pass over it.
type diskCache struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	pending map[ServiceID]stored // to be written; the newest of each
	writing chan struct{}        // closed when the writer has ended; nil: there is none
	closed  bool
	warned  bool

	swept bool // owned by the writer, of which there is one at a time

	closing   chan struct{} // no more pauses
	abandoned chan struct{} // no more files
}

// openCache has the directory of Config.CacheDir, "off" included (nil), and
// never fails: what cannot be written is told to the log once.
func openCache(dir, namespace string, log *slog.Logger) *diskCache {
	if dir == "off" {
		return nil
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			log.Warn("lists are not kept on disk", "error", err)
			return nil
		}
		dir = filepath.Join(base, "starling")
	}
	return &diskCache{
		dir: filepath.Join(dir, "naming", namespaceDir(namespace)), log: log,
		pending: make(map[ServiceID]stored), closing: make(chan struct{}), abandoned: make(chan struct{}),
	}
}

// namespaceDir is the namespace's id, unless that would be another directory.
func namespaceDir(namespace string) string {
	switch {
	case namespace == "":
		return "public"
	case namespace == "." || namespace == ".." || strings.ContainsAny(namespace, `/\`):
		return strings.ReplaceAll(url.QueryEscape(namespace), ".", "%2E")
	}
	return namespace
}

// load reads all that is there (C-11, C-12).
func (c *diskCache) load() map[ServiceID]stored {
	if c == nil {
		return nil
	}
	d := listDir{dir: c.dir}
	lists, err := d.read(time.Now())
	if err != nil {
		c.warn("lists on disk are passed over", err)
	}
	return lists
}

// put writes a list some time later; it never waits for the disk. The last one
// of a service wins.
func (c *diskCache) put(id ServiceID, s stored) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.pending[id] = s
	if c.writing == nil {
		c.writing = make(chan struct{})
		go c.write(c.writing)
	}
}

// write ends when nothing was put for one pause, so that a cache at rest has no
// goroutine.
func (c *diskCache) write(done chan struct{}) {
	defer close(done)
	for {
		c.mu.Lock()
		batch := c.pending
		if len(batch) == 0 {
			c.writing = nil
			c.mu.Unlock()
			return
		}
		c.pending = make(map[ServiceID]stored)
		c.mu.Unlock()

		if !c.swept {
			c.swept = true
			removeUnfinished(c.dir)
		}
		for id, s := range batch {
			select {
			case <-c.abandoned:
				return
			default:
			}
			if err := writeList(c.dir, id, s); err != nil {
				c.warn("a list is not kept on disk", err)
			}
		}
		select {
		case <-time.After(cachePause):
		case <-c.closing:
		}
	}
}

// warn says it once: what is wrong with a disk stays so for long.
func (c *diskCache) warn(msg string, err error) {
	c.mu.Lock()
	warned := c.warned
	c.warned = true
	c.mu.Unlock()
	level := slog.LevelWarn
	if warned {
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, msg, "error", err)
}

// close writes what is left, within the context's time.
func (c *diskCache) close(ctx context.Context) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
	}
	writing := c.writing
	c.mu.Unlock()
	if writing == nil {
		return nil
	}
	select {
	case <-writing:
		return nil
	case <-ctx.Done():
		select {
		case <-writing: // both are true
			return nil
		default:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.abandoned:
	default:
		close(c.abandoned)
	}
	return fmt.Errorf("lists are not all written to %s: %w", c.dir, context.Cause(ctx))
}

// writeSnapshot writes files of these lists into a directory, that of
// Client.ExportSnapshot.
func writeSnapshot(dir string, lists map[ServiceID]stored) error {
	var failed []error
	for id, s := range lists {
		if err := writeList(dir, id, s); err != nil {
			failed = append(failed, err)
			if len(failed) == 10 { // the rest will say the same
				break
			}
		}
	}
	return errors.Join(failed...)
}

func writeList(dir string, id ServiceID, s stored) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-*"+unfinished)
	if err != nil {
		return err
	}
	_, err = f.Write(encodeList(id, s))
	if err := cmp.Or(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, listFile(id))); err != nil {
		os.Remove(f.Name())
		return err
	}
	return nil
}

// removeUnfinished removes what processes have left that died while writing.
func removeUnfinished(dir string) {
	entries, _ := os.ReadDir(dir) // none: nothing to remove
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "new-") || !strings.HasSuffix(e.Name(), unfinished) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// listFile is the name of a service's file (C-9): as Java's URLEncoder writes it.
func listFile(id ServiceID) string {
	return strings.NewReplacer("%2A", "*", "~", "%7E").Replace(url.QueryEscape(id.String()))
}

// parseListFile reads the name of a file: that of Java, with the clusters that
// older versions have behind it, or the bare one of the Go SDK.
func parseListFile(name string) (id ServiceID, clusters string, ok bool) {
	if strings.Contains(name, "%40%40") || !strings.Contains(name, "@@") {
		var err error
		if name, err = url.QueryUnescape(name); err != nil {
			return ServiceID{}, "", false
		}
	}
	if strings.HasSuffix(name, "@@meta") || strings.HasSuffix(name, unfinished) {
		return ServiceID{}, "", false
	}
	group, rest, _ := strings.Cut(name, "@@")
	service, clusters, _ := strings.Cut(rest, "@@")
	return ServiceID{group, service}, clusters, group != "" && service != ""
}

// A listDir reads the lists in a directory, and those files only that have
// changed since the time before. It belongs to one goroutine.
type listDir struct {
	dir   string
	files map[string]listOf
}

// A listOf is what is known of a file.
type listOf struct {
	id       ServiceID
	clusters string
	modified time.Time
	size     int64
	settled  bool // it was not written just before it was read: what is written next has another time
	list     stored
	good     bool // list was read, be it an older one than what cannot be read now
	err      error
}

// read returns the lists with at least one instance (C-11). The error is about
// the first file that could not be read, how many there are, or the directory;
// the others are returned all the same. A directory that is not there is empty.
func (d *listDir) read(now time.Time) (map[ServiceID]stored, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	files := make(map[string]listOf, len(entries))
	var bad int
	var first error
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		id, clusters, ok := parseListFile(e.Name())
		if !ok {
			continue
		}
		f := d.files[e.Name()]
		f.id, f.clusters = id, clusters
		f.read(filepath.Join(d.dir, e.Name()), now)
		if f.err != nil {
			if bad++; first == nil {
				first = f.err
			}
		}
		files[e.Name()] = f
	}
	d.files = files
	if bad > 1 {
		first = fmt.Errorf("%w (and %d other files)", first, bad-1)
	}
	return joinLists(files), first
}

func (f *listOf) read(path string, now time.Time) {
	info, err := os.Stat(path) // behind a link too: a mounted ConfigMap has links
	if err != nil {
		f.err, f.settled = err, false
		return
	}
	if f.settled && info.ModTime().Equal(f.modified) && info.Size() == f.size {
		return
	}
	f.modified, f.size = info.ModTime(), info.Size()
	f.settled = now.Sub(f.modified).Abs() > 2*time.Second
	var list stored
	if list, f.err = readListFile(path, info); f.err == nil {
		list.asOf = f.modified
		f.list, f.good = list, true
	}
}

func readListFile(path string, info os.FileInfo) (stored, error) {
	switch {
	case !info.Mode().IsRegular(): // opening a pipe would wait for a writer
		return stored{}, fmt.Errorf("%s is not a file", path)
	case info.Size() > maxListFile:
		return stored{}, fmt.Errorf("%s has more than %d bytes", path, maxListFile)
	}
	f, err := os.Open(path)
	if err != nil {
		return stored{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxListFile+1)) // it may grow meanwhile
	if err != nil {
		return stored{}, err
	}
	list, err := decodeList(data)
	if err != nil {
		return stored{}, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// joinLists makes one list of all files of a service. Those of some clusters
// count only if there is none of all, and together; of several with all the
// newest counts.
func joinLists(files map[string]listOf) map[ServiceID]stored {
	sorted := make([]*listOf, 0, len(files))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if f := files[name]; f.good && len(f.list.instances) > 0 {
			sorted = append(sorted, &f)
		}
	}
	slices.SortStableFunc(sorted, func(a, b *listOf) int {
		if (a.clusters == "") != (b.clusters == "") {
			return cmp.Compare(len(b.clusters), len(a.clusters))
		}
		return a.modified.Compare(b.modified)
	})
	lists := make(map[ServiceID]stored)
	for _, f := range sorted { // the later wins
		old, several := lists[f.id]
		if f.clusters == "" || !several {
			lists[f.id] = f.list
			continue
		}
		joined := f.list
		joined.instances = sortInstances(slices.Concat(old.instances, f.list.instances))
		joined.protected = old.protected || f.list.protected
		joined.asOf = old.asOf // the older one
		lists[f.id] = joined
	}
	return lists
}

// listJSON is Java's ServiceInfo, in the order in which Jackson writes it
// (C-10).
type listJSON struct {
	Name        string     `json:"name"`
	Group       string     `json:"groupName"`
	Clusters    string     `json:"clusters"`
	CacheMillis int64      `json:"cacheMillis"`
	Hosts       []hostJSON `json:"hosts"`
	LastRefTime int64      `json:"lastRefTime"`
	Checksum    string     `json:"checksum"`
	AllIPs      bool       `json:"allIps"`
	Protected   bool       `json:"reachProtectionThreshold"`
	Valid       bool       `json:"valid"`
}

type hostJSON struct {
	ID           string            `json:"instanceId,omitempty"`
	IP           string            `json:"ip"`
	Port         int               `json:"port"`
	Weight       any               `json:"weight"`
	Healthy      bool              `json:"healthy"`
	Enabled      bool              `json:"enabled"`
	Ephemeral    bool              `json:"ephemeral"`
	Cluster      string            `json:"clusterName"`
	Service      string            `json:"serviceName"`
	Metadata     map[string]string `json:"metadata"`
	BeatInterval int64             `json:"instanceHeartBeatInterval"`
	BeatTimeout  int64             `json:"instanceHeartBeatTimeOut"`
	DeleteAfter  int64             `json:"ipDeleteTimeout"`
	Generator    string            `json:"instanceIdGenerator"`
}

// encodeList writes one line.
func encodeList(id ServiceID, s stored) []byte {
	l := listJSON{
		Name: id.Name, Group: id.Group, CacheMillis: s.cacheMillis, LastRefTime: s.lastRefTime, Protected: s.protected, Valid: true,
		Hosts: make([]hostJSON, 0, len(s.instances)),
	}
	for _, i := range s.instances {
		h := hostJSON{
			ID: i.ID, IP: i.IP, Port: i.Port, Weight: i.Weight, Healthy: i.Healthy, Enabled: i.Enabled, Ephemeral: i.Ephemeral,
			Cluster: i.Cluster, Service: id.String(), Metadata: i.Metadata,
			BeatInterval: millis(i.Metadata, nacos.KeyBeatInterval, nacos.DefaultBeatInterval),
			BeatTimeout:  millis(i.Metadata, nacos.KeyBeatTimeout, nacos.DefaultBeatTimeout),
			DeleteAfter:  millis(i.Metadata, nacos.KeyDeleteAfter, nacos.DefaultDeleteAfter),
			Generator:    cmp.Or(i.Metadata[nacos.KeyIDGenerator], "simple"),
		}
		if h.Metadata == nil {
			h.Metadata = map[string]string{}
		}
		// As Jackson writes what JSON has no number for.
		switch {
		case math.IsNaN(i.Weight):
			h.Weight = "NaN"
		case math.IsInf(i.Weight, 1):
			h.Weight = "Infinity"
		case math.IsInf(i.Weight, -1):
			h.Weight = "-Infinity"
		}
		l.Hosts = append(l.Hosts, h)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(l); err != nil {
		panic("BUG: a list cannot be encoded: " + err.Error())
	}
	return b.Bytes()
}

// millis reads a time from metadata; what is not all digits counts as missing.
func millis(md map[string]string, key string, missing int64) int64 {
	if n, err := strconv.ParseUint(md[key], 10, 63); err == nil {
		return int64(n)
	}
	return missing
}

// foundJSON is what a file may have: a ServiceInfo or, without a name, one
// instance. Operators write such files too, so values may have any type that
// Jackson would take.
type foundJSON struct {
	Name        text         `json:"name"`
	CacheMillis number       `json:"cacheMillis"`
	Hosts       []*foundHost `json:"hosts"`
	LastRefTime number       `json:"lastRefTime"`
	Protected   truth        `json:"reachProtectionThreshold"`
	foundHost
}

type foundHost struct {
	ID        text            `json:"instanceId"`
	IP        text            `json:"ip"`
	Port      number          `json:"port"`
	Weight    *number         `json:"weight"`
	Healthy   *truth          `json:"healthy"`
	Enabled   *truth          `json:"enabled"`
	Ephemeral *truth          `json:"ephemeral"`
	Cluster   text            `json:"clusterName"`
	Metadata  map[string]text `json:"metadata"`
}

var errNoList = errors.New("there is no list in it")

// decodeList reads a file (C-11). One without any instance is a list too; the
// error says that there is none, or only part of one.
func decodeList(data []byte) (stored, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	found, err := decodeWhole(data)
	if err != nil {
		// As Java does: a line is an object or nothing.
		found = nil
		for line := range bytes.Lines(data) {
			var f foundJSON
			if bytes.HasPrefix(line, []byte("{")) && json.Unmarshal(line, &f) == nil {
				found = append(found, &f)
			}
		}
		if len(found) == 0 {
			return stored{}, err
		}
	}
	if len(found) == 0 {
		return stored{}, errNoList
	}
	last := found[len(found)-1]
	if last.Name != "" {
		return stored{
			instances: instancesOf(last.Hosts), lastRefTime: int64(last.LastRefTime), cacheMillis: int64(last.CacheMillis),
			protected: bool(last.Protected),
		}, nil
	}
	var hosts []*foundHost
	for _, f := range found {
		if f.Name == "" {
			hosts = append(hosts, &f.foundHost)
		}
	}
	list := instancesOf(hosts)
	if len(list) == 0 {
		return stored{}, errNoList
	}
	return stored{instances: list}, nil
}

// decodeWhole reads objects with nothing but space between them.
func decodeWhole(data []byte) ([]*foundJSON, error) {
	var found []*foundJSON
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		var f *foundJSON
		switch err := dec.Decode(&f); {
		case err == io.EOF:
			return found, nil
		case err != nil:
			return nil, err
		case f == nil:
			return nil, errNoList
		}
		found = append(found, f)
	}
}

// instancesOf leaves out what has no address.
func instancesOf(hosts []*foundHost) []Instance {
	list := make([]Instance, 0, len(hosts))
	for _, h := range hosts {
		if h == nil || h.IP == "" || !(h.Port >= 0 && h.Port <= 65535) {
			continue
		}
		i := Instance{
			ID: string(h.ID), IP: string(h.IP), Port: int(h.Port), Cluster: cmp.Or(string(h.Cluster), DefaultCluster), Weight: 1,
			Healthy: h.Healthy == nil || bool(*h.Healthy), Enabled: h.Enabled == nil || bool(*h.Enabled), Ephemeral: h.Ephemeral == nil || bool(*h.Ephemeral),
			Metadata: make(map[string]string, len(h.Metadata)),
		}
		if h.Weight != nil {
			i.Weight = float64(*h.Weight)
		}
		if math.IsNaN(i.Weight) { // not equal to itself, so that it would always be a change
			i.Weight = 0
		}
		for k, v := range h.Metadata {
			i.Metadata[k] = string(v)
		}
		list = append(list, i)
	}
	return sortInstances(list)
}

// sortInstances brings a list into the order of a snapshot, and of those with
// one identity (ip, port, cluster) keeps the last (D-1). It works in place.
func sortInstances(list []Instance) []Instance {
	order := func(a, b Instance) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.IP, b.IP), cmp.Compare(a.Port, b.Port))
	}
	slices.SortStableFunc(list, order)
	kept := list[:0]
	for n, i := range list {
		if n+1 == len(list) || order(i, list[n+1]) != 0 {
			kept = append(kept, i)
		}
	}
	clear(list[len(kept):])
	return kept
}

// A text is a string, or a number or so that stands for one; null is empty.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	switch {
	case b[0] == '"':
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
	case b[0] == '{' || b[0] == '[':
		return fmt.Errorf("%.20q is not a text", b)
	case b[0] != 'n':
		s = string(b)
	}
	*t = text(s)
	return nil
}

// A number may be quoted: NaN and Infinity always are.
type number float64

func (n *number) UnmarshalJSON(b []byte) error {
	var t text
	if err := t.UnmarshalJSON(b); err != nil || t == "" {
		return err
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(string(t)), 64)
	*n = number(f) // out of range: infinite
	if errors.Is(err, strconv.ErrRange) {
		return nil
	}
	return err
}

// A truth may be quoted.
type truth bool

func (v *truth) UnmarshalJSON(b []byte) error {
	var t text
	if err := t.UnmarshalJSON(b); err != nil || t == "" {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(string(t))) {
	case "true", "1":
		*v = true
	case "false", "0":
		*v = false
	default:
		return fmt.Errorf("%q is neither true nor false", string(t))
	}
	return nil
}
