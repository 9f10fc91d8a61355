package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// What follows does by hand what Docker or Kubernetes would do with the image and a
// manifest: a process with the entry point, arguments and variables of both, as the
// user of the image, in a mount namespace whose root is what the Dockerfile copies,
// read-only but for its volumes, and in a network namespace with an address of its
// own. Not done are cgroups, seccomp and the dropping of capabilities that a user
// other than root does not have anyway.

// patience bounds each wait for something that takes a few seconds.
const patience = 40 * time.Second

// A host has pods: a bridge, through which this process reaches them, too.
type host struct {
	t      *testing.T
	image  image
	dir    string // of all files
	root   string // the file system of the image
	hosts  string // what its pods have as /etc/hosts, which stands for DNS
	name   string // of the bridge, begins the names of all else
	prefix string // of the addresses: "10.1.2."
	made   int    // pods, so that no address is used again
}

// hostName has the id of the process that made the network, so that what was left
// behind by a kill -9 is told from what is in use.
var hostName = regexp.MustCompile(`\bstsh(\d+)(-\d+)?`)

func newHost(t *testing.T) *host {
	if os.Geteuid() != 0 {
		t.Skip("not run for lack of root: it makes namespaces")
	}
	i := readImage(t)
	bin := binary(t)
	removeLeft()
	h := &host{t: t, image: i, name: "stsh" + strconv.Itoa(os.Getpid())}
	h.dir = filepath.Join(os.TempDir(), h.name)
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(h.dir) })
	h.root, h.hosts = h.temp("root-*"), filepath.Join(h.dir, "hosts")
	h.makeRoot(bin)
	h.write(h.hosts, "", 0o644)
	h.prefix = freePrefix(t)
	t.Cleanup(func() { ip(t, "link del "+h.name) })
	ip(t, "link add "+h.name+" type bridge")
	ip(t, "addr add "+h.prefix+"1/24 dev "+h.name)
	ip(t, "link set "+h.name+" up")
	return h
}

// temp makes a directory, which goes with all others. Those of testing would stay
// after a kill -9.
func (h *host) temp(pattern string) string {
	h.t.Helper()
	dir, err := os.MkdirTemp(h.dir, pattern)
	if err != nil {
		h.t.Fatal(err)
	}
	return dir
}

func (h *host) write(file, content string, mode os.FileMode) {
	h.t.Helper()
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil { // whatever the umask is
		h.t.Fatal(err)
	}
}

// makeRoot lays out what the last stage of the Dockerfile has.
func (h *host) makeRoot(bin string) {
	t := h.t
	t.Helper()
	if err := os.Chmod(h.root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range h.image.copies {
		to, from := h.root+c.to, ""
		switch file, isSource := strings.CutPrefix(c.from, "/src/"); {
		case c.from == "/src/bin/starling":
			from = bin
		case isSource:
			from = filepath.Join(root, file)
		case c.from == "/empty":
		default:
			t.Fatalf("what is %s in the stage that builds?", c.from)
		}
		err := os.MkdirAll(filepath.Dir(to), 0o755)
		switch {
		case err != nil:
		case from == "":
			err = os.Mkdir(to, 0o755)
		default:
			err = exec.Command("cp", from, to).Run()
		}
		if err == nil && c.owner != "" {
			err = exec.Command("chown", c.owner, to).Run()
		}
		if err != nil {
			t.Fatalf("%s: %v", c.to, err)
		}
	}
	// What every runtime mounts is there to be mounted over.
	for _, dir := range []string{"/etc", "/proc", "/dev"} {
		if err := os.MkdirAll(h.root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write(h.root+"/etc/hosts", "", 0o644)
}

// A mount is a directory or a file of this machine in a pod.
type mount struct {
	from, to string
	readOnly bool
}

// A pod runs, or ran, one container.
type pod struct {
	*host
	name, namespace, addr string
	mounts                []mount
	cmd                   *exec.Cmd
	log                   string
	ended                 chan struct{} // closed when err is set
	err                   error
}

// place makes the place of a new pod, with an address that none had before.
func (h *host) place() (namespace, addr string) {
	h.t.Helper()
	h.made++
	n := strconv.Itoa(h.made)
	namespace, addr = h.name+"-"+n, h.prefix+strconv.Itoa(10+h.made)
	h.t.Cleanup(func() { ip(h.t, "netns del "+namespace) }) // its link goes along
	ip(h.t, "netns add "+namespace)
	ip(h.t, "link add "+h.name+"-"+n+" type veth peer name eth0 netns "+namespace)
	ip(h.t, "link set "+h.name+"-"+n+" master "+h.name+" up")
	ip(h.t, "-n "+namespace+" addr add "+addr+"/24 dev eth0")
	ip(h.t, "-n "+namespace+" link set lo up")
	ip(h.t, "-n "+namespace+" link set eth0 up")
	return namespace, addr
}

// enter is run in a network namespace and a new mount namespace by "ip netns exec":
// ROOT, then FROM TO ro|rw for each mount, then "--" and the command.
const enter = `
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
while [ "$1" != -- ]; do
	mount --bind "$1" "$root$2"
	mount -o "remount,bind,$3" "$root$2"
	shift 3
done
shift
mount -t proc -o ro proc "$root/proc"
exec "$@"
`

// command is a command of the image in the place of the pod.
func (p *pod) command(env map[string]string, argv ...string) *exec.Cmd {
	args := []string{"netns", "exec", p.namespace, "sh", "-euc", enter, "sh", p.root}
	for _, m := range append(p.mounts, mount{p.hosts, "/etc/hosts", true}) {
		mode := "rw"
		if m.readOnly {
			mode = "ro"
		}
		args = append(args, m.from, m.to, mode)
	}
	args = append(args, "--", "env", "-i")
	for name, value := range env {
		args = append(args, name+"="+value)
	}
	args = append(args, "/usr/sbin/chroot", "--userspec="+p.image.user, p.root)
	return exec.Command("ip", append(args, argv...)...)
}

// start runs the entry point of the image with what a manifest says.
func (h *host) start(name, namespace, addr string, c container, mounts []mount) *pod {
	t := h.t
	t.Helper()
	for _, m := range mounts { // as a runtime does
		at := h.root + m.to
		info, err := os.Stat(m.from)
		if err == nil && info.IsDir() {
			err = os.MkdirAll(at, 0o755)
		} else if err == nil {
			if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
				h.write(at, "", 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &pod{host: h, name: name, namespace: namespace, addr: addr, mounts: mounts, ended: make(chan struct{})}
	p.cmd = p.command(c.env, append(h.image.entrypoint, c.expand()...)...)
	log, err := os.CreateTemp(h.dir, name+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	p.log, p.cmd.Stdout, p.cmd.Stderr = log.Name(), log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log.Close()
	go func() { p.err = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			b, _ := os.ReadFile(p.log) // before its directory goes
			t.Logf("the end of the log of %s at %s:\n%s", name, addr, b[max(0, len(b)-4000):])
		}
	})
	return p
}

// stop is what ends a container: it must end well, and within the time it has.
func (p *pod) stop(within time.Duration) {
	p.t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		if p.err != nil {
			p.t.Errorf("%s ends with %v", p.name, p.err)
		}
	case <-time.After(within):
		p.t.Errorf("%s would have been killed: it did not end within %v", p.name, within)
	}
}

// run runs a command of the image in the pod and returns its output and its status.
func (p *pod) run(argv ...string) (string, int) {
	p.t.Helper()
	cmd := p.command(p.image.env, argv...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(out)), cmd.ProcessState.ExitCode()
}

// get asks the pod over HTTP.
func (p *pod) get(method, path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(p.addr, "8848")+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func (p *pod) must(method, path string) string {
	p.t.Helper()
	status, body, err := p.get(method, path)
	if err != nil || status != 200 {
		p.t.Fatalf("%s %s: %d %s, %v", method, path, status, body, err)
	}
	return body
}

// until waits for something to come true, at most for patience.
func (h *host) until(what string, pods []*pod, is func() (bool, string)) {
	h.t.Helper()
	last := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, p := range pods {
			select {
			case <-p.ended:
				h.t.Fatalf("%s ended while %s was waited for: %v", p.name, what, p.err)
			default:
			}
		}
		ok, now := is()
		if ok {
			return
		}
		last = now
	}
	h.t.Fatalf("%s: not within %v; last: %s", what, patience, last)
}

// passes waits until a probe of a manifest says yes.
func (p *pod) passes(k core.Container, probe *core.Probe) {
	p.t.Helper()
	for _, port := range k.Ports {
		if port.Name == probe.HTTPGet.Port.StrVal && port.ContainerPort != 8848 {
			p.t.Fatalf("the probe asks port %d", port.ContainerPort)
		}
	}
	p.until(probe.HTTPGet.Path, []*pod{p}, func() (bool, string) {
		status, body, err := p.get("GET", probe.HTTPGet.Path)
		return err == nil && status >= 200 && status < 400, fmt.Sprint(body, err)
	})
}

// healthy waits until the health check of the image says yes.
func (p *pod) healthy() {
	p.t.Helper()
	p.until("the health check", []*pod{p}, func() (bool, string) {
		out, status := p.run(p.image.health...)
		return status == 0, out
	})
}

// volume makes a directory with an owner and a mode, as a volume begins.
func (h *host) volume(owner string, mode os.FileMode) string {
	h.t.Helper()
	dir := h.temp("volume-*")
	if err := errors.Join(exec.Command("chown", owner, dir).Run(), os.Chmod(dir, mode)); err != nil {
		h.t.Fatal(err)
	}
	// The user of the image gets there by the mount, not by the path.
	return dir
}

// imageVolume is a named volume as Docker makes it: with the owner and the mode of
// what the image has there.
func (h *host) imageVolume() string {
	h.t.Helper()
	info, err := os.Stat(h.root + h.image.volumes[0])
	if err != nil {
		h.t.Fatal(err)
	}
	is := info.Sys().(*syscall.Stat_t)
	return h.volume(fmt.Sprintf("%d:%d", is.Uid, is.Gid), info.Mode())
}

const (
	persistent = "/nacos/v1/ns/instance?serviceName=db&ip=10.9.9.9&port=5432&ephemeral=false"
	ephemeral  = "/nacos/v1/ns/instance?serviceName=order&ip=10.9.9.8&port=8080"
)

// TestImage runs the image as "docker run" does.
func TestImage(t *testing.T) {
	h := newHost(t)
	mounts := []mount{{h.imageVolume(), h.image.volumes[0], false}}
	namespace, addr := h.place()
	p := h.start("alone", namespace, addr, h.image.container(nil, nil), mounts)
	p.healthy()
	if out, status := p.run(h.image.entrypoint[0], "ready", "--live"); status != 0 || out != "alive" {
		t.Errorf("ready --live: status %d: %s", status, out)
	}
	p.must("POST", ephemeral)
	p.must("POST", persistent)
	if list := p.must("GET", "/nacos/v1/ns/instance/list?serviceName=order"); !strings.Contains(list, `"ip":"10.9.9.8"`) {
		t.Error(list)
	}
	// Only the volume can be written.
	if out, status := p.run(h.image.entrypoint[0], "backup", "/usr/backup"); status != 1 || !strings.Contains(out, "read-only file system") {
		t.Errorf("a backup into the image: status %d: %s", status, out)
	}
	if out, status := p.run(h.image.entrypoint[0], "backup", h.image.volumes[0]+"/backup"); status != 0 {
		t.Errorf("a backup into the volume: status %d: %s", status, out)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	user, _, _ := strings.Cut(h.image.user, ":")
	if err != nil || !bytes.Contains(status, []byte("\nUid:\t"+user+"\t"+user+"\t"+user+"\t"+user+"\n")) || !bytes.Contains(status, []byte("\nCapEff:\t0000000000000000\n")) {
		t.Errorf("it does not run as %s without rights: %v\n%s", user, err, status)
	}
	p.stop(40 * time.Second)
	if out, status := p.run(h.image.health...); status != 1 {
		t.Errorf("a node that has ended is healthy: status %d: %s", status, out)
	}

	// A new container on the same volume, with another address.
	namespace, addr = h.place()
	p = h.start("again", namespace, addr, h.image.container(nil, nil), mounts)
	p.healthy()
	if list := p.must("GET", "/nacos/v1/ns/instance/list?serviceName=db"); !strings.Contains(list, `"ip":"10.9.9.9"`) {
		t.Errorf("the volume does not keep what was registered: %s", list)
	}
	p.stop(40 * time.Second)
}

// A crowd is the nodes of a cluster, by ordinal.
type crowd struct {
	*host
	peers     string                                   // the name of all
	container func(ordinal int, addr string) container // what a node runs
	name      func(ordinal int) string
	volume    func() string // a new one
	secret    mount
	grace     time.Duration

	mu   sync.Mutex // of pods; the witness reads them
	pods []*pod

	volumes []string
}

// addresses puts all nodes behind the name.
func (c *crowd) addresses(more string) {
	c.t.Helper()
	var b strings.Builder
	for _, p := range c.alive() {
		fmt.Fprintf(&b, "%s %s\n", p.addr, c.peers)
	}
	if more != "" {
		fmt.Fprintf(&b, "%s %s\n", more, c.peers)
	}
	c.write(c.hosts, b.String(), 0o644) // in place: it is mounted
}

func (c *crowd) alive() []*pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	var alive []*pod
	for _, p := range c.pods {
		if p != nil {
			alive = append(alive, p)
		}
	}
	return alive
}

// start starts a node at a new address, on the volume of its ordinal. The others hear
// of the address by the name only.
func (c *crowd) start(ordinal int) *pod {
	c.t.Helper()
	for len(c.volumes) <= ordinal {
		c.volumes = append(c.volumes, c.volume())
		c.mu.Lock()
		c.pods = append(c.pods, nil)
		c.mu.Unlock()
	}
	namespace, addr := c.place()
	c.addresses(addr)
	of := c.container(ordinal, addr)
	p := c.host.start(c.name(ordinal), namespace, addr, c.image.container(of.args, of.env),
		[]mount{{c.volumes[ordinal], c.image.volumes[0], false}, c.secret})
	c.mu.Lock()
	c.pods[ordinal] = p
	c.mu.Unlock()
	return p
}

// stop ends a node as the orchestrator does: out of the name, then SIGTERM.
func (c *crowd) stop(ordinal int) {
	c.t.Helper()
	c.mu.Lock()
	p := c.pods[ordinal]
	c.pods[ordinal] = nil
	c.mu.Unlock()
	c.addresses("")
	p.stop(c.grace)
}

// agree waits until all nodes are members, vote as they should and show the same.
func (c *crowd) agree(voters int) {
	c.t.Helper()
	alive := c.alive()
	c.until(fmt.Sprintf("%d nodes with %d voters", len(alive), voters), alive, func() (bool, string) {
		out, status := alive[0].run(c.image.entrypoint[0], "raft")
		if status != 0 {
			return false, out
		}
		var raft struct {
			AliveVoters int
			Servers     []struct {
				Voter bool
				State string
			}
		}
		_, body, err := alive[0].get("GET", "/starling/v1/raft")
		if err == nil {
			err = json.Unmarshal([]byte(body), &raft)
		}
		if err != nil {
			return false, err.Error()
		}
		members, votes := 0, 0
		for _, s := range raft.Servers {
			if s.State == "alive" {
				members++
			}
			if s.Voter {
				votes++
			}
		}
		return votes == voters && raft.AliveVoters == voters && members == len(alive), out
	})
	if out, status := alive[0].run(c.image.entrypoint[0], "verify", "--within", "20s"); status != 0 {
		c.t.Errorf("verify: status %d: %s", status, out)
	}
}

// witness keeps an instance alive by beats, and looks at all nodes that are ready
// whether both instances are there, until it is told to stop.
func (c *crowd) witness() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	looks, lastBeat := 0, time.Time{}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, p := range c.alive() {
				if status, _, err := p.get("GET", "/readyz"); err != nil || status != 200 {
					continue
				}
				if time.Since(lastBeat) > 2*time.Second {
					beat := url.Values{"serviceName": {"order"}, "beat": {`{"ip":"10.9.9.8","port":8080}`}}
					if status, _, err := p.get("PUT", "/nacos/v1/ns/instance/beat?"+beat.Encode()); err == nil && status == 200 {
						lastBeat = time.Now()
					}
				}
				for service, addr := range map[string]string{"order": "10.9.9.8", "db": "10.9.9.9"} {
					status, body, err := p.get("GET", "/nacos/v1/ns/instance/list?serviceName="+service)
					if err != nil || status != 200 {
						continue // it stops just now
					}
					looks++
					if !strings.Contains(body, `"ip":"`+addr+`"`) {
						c.t.Errorf("%s at %s does not list %s of %s: %s", p.name, p.addr, addr, service, body)
						return
					}
				}
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		c.t.Helper()
		cancel()
		<-done
		if looks < 20 {
			c.t.Errorf("only %d looks", looks)
		}
		c.t.Logf("%d looks at the lists while nodes were replaced", looks)
	}
}

// begin starts a new cluster and registers both instances.
func (c *crowd) begin(nodes int, ready func(*pod)) {
	c.t.Helper()
	for i := range nodes {
		c.start(i)
	}
	for _, p := range c.alive() {
		ready(p)
	}
	c.agree(nodes)
	first := c.alive()[0]
	first.must("POST", ephemeral)
	first.must("POST", persistent)
	c.until("both instances on all nodes", c.alive(), func() (bool, string) {
		for _, p := range c.alive() {
			for _, service := range []string{"order", "db"} {
				if body := p.must("GET", "/nacos/v1/ns/instance/list?serviceName="+service); !strings.Contains(body, `"ip":"10.9.9.`) {
					return false, body
				}
			}
		}
		return true, ""
	})
}

func (c *crowd) end() {
	c.t.Helper()
	var wg sync.WaitGroup
	for _, p := range c.alive() {
		wg.Go(func() { p.stop(c.grace) })
	}
	wg.Wait()
}

// A set is the StatefulSet of the chart, whose pods it runs.
type set struct {
	*apps.StatefulSet
	*crowd
	k core.Container
}

// newSet makes the nodes of what the chart renders; none is started.
func newSet(h *host, values string) *set {
	t := h.t
	t.Helper()
	o, _ := mustRender(t, values, newCluster(), false)
	s := &set{StatefulSet: get[*apps.StatefulSet](t, o, "starling")}
	spec := s.Spec.Template.Spec
	s.k = spec.Containers[0]
	group := strconv.FormatInt(*spec.SecurityContext.FSGroup, 10)
	key := h.volume("root:"+group, 0o755) // as fsGroup does with the volume of a secret
	h.write(filepath.Join(key, "key"), string(get[*core.Secret](t, o, "starling-gossip-key").Data["key"]), 0o440)
	if err := exec.Command("chgrp", group, filepath.Join(key, "key")).Run(); err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return s.StatefulSet.Name + "-" + strconv.Itoa(i) }
	s.crowd = &crowd{
		host: h, peers: s.Spec.ServiceName, name: name,
		container: func(i int, addr string) container { return containerOf(t, s.StatefulSet, name(i), addr) },
		volume:    func() string { return h.volume("root:"+group, 0o775|os.ModeSetgid) }, // as fsGroup does with others
		secret:    mount{key, s.k.VolumeMounts[1].MountPath, true},
		grace:     time.Duration(*spec.TerminationGracePeriodSeconds-s.k.Lifecycle.PreStop.Sleep.Seconds) * time.Second,
	}
	return s
}

// ready waits until all probes of a pod say yes, in the order of Kubernetes.
func (s *set) ready(p *pod) {
	s.t.Helper()
	p.passes(s.k, s.k.StartupProbe)
	p.passes(s.k, s.k.ReadinessProbe)
	p.passes(s.k, s.k.LivenessProbe)
}

// TestStatefulSet runs the pods of the chart: three nodes, a rolling update in which
// each gets a new address, two more with the same template, and these away again.
func TestStatefulSet(t *testing.T) {
	h := newHost(t)
	s := newSet(h, "")
	s.begin(int(*s.Spec.Replicas), s.ready)
	stop := s.witness()
	for i := int(*s.Spec.Replicas) - 1; i >= 0; i-- {
		s.stop(i)
		s.ready(s.crowd.start(i))
	}
	s.agree(3)
	for i := 3; i < 5; i++ {
		s.ready(s.crowd.start(i))
	}
	s.agree(5)
	// And away again, as the README of the chart has it.
	for i := 4; i >= 3; i-- {
		s.stop(i)
		// That it is gone, the node that is asked may hear a moment later.
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(200 * time.Millisecond) { // polls a condition
			out, status := s.alive()[0].run(h.image.entrypoint[0], "members", "remove", s.crowd.name(i))
			if status == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("members remove: status %d: %s", status, out)
			}
		}
		s.agree(3)
	}
	stop()
	s.end()
}

// TestStatefulSetOfOne grows from one node to three, with pods that only join from
// then on, and the first one restarted last.
func TestStatefulSetOfOne(t *testing.T) {
	h := newHost(t)
	s := newSet(h, "replicas: 1")
	s.begin(1, s.ready)
	joining, _ := mustRender(t, variants["joining"], newCluster(), true)
	template := get[*apps.StatefulSet](t, joining, "starling")
	s.container = func(i int, addr string) container { return containerOf(t, template, s.crowd.name(i), addr) }
	for i := 1; i < 3; i++ {
		s.ready(s.crowd.start(i))
	}
	s.agree(3)
	stop := s.witness()
	s.stop(0)
	s.ready(s.crowd.start(0))
	s.agree(3)
	stop()
	s.end()
}

// TestComposeNodes runs the three services of the compose file, and replaces one.
func TestComposeNodes(t *testing.T) {
	h := newHost(t)
	p := composeProject(t)
	key := filepath.Join(h.dir, "starling.key")
	h.write(key, strings.Repeat("secret ", 5), 0o400)
	if err := exec.Command("chown", h.image.user, key).Run(); err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return "node-" + strconv.Itoa(i+1) }
	grace := p.Services["node-1"].StopGracePeriod
	c := &crowd{
		host: h, peers: p.Services["node-1"].Networks["nodes"].Aliases[0], name: name,
		container: func(i int, _ string) container { return container{args: p.Services[name(i)].Command} },
		volume:    h.imageVolume,
		secret:    mount{key, argument(t, p.Services["node-1"].Command, "--gossip-key-file="), true},
		grace:     time.Duration(*grace),
	}
	c.begin(len(p.Services), (*pod).healthy)
	stop := c.witness()
	c.stop(1)
	c.start(1).healthy()
	c.agree(3)
	stop()
	c.end()
}

func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v %s", args, err, out)
	}
}

// removeLeft removes what belongs to test processes that are gone, their nodes
// included.
func removeLeft() {
	left := func(out []byte, remove func(name string)) {
		for line := range strings.Lines(string(out)) {
			m := hostName.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			if pid, err := strconv.Atoi(m[1]); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				remove(m[0])
			}
		}
	}
	spaces, _ := exec.Command("ip", "netns", "list").Output()
	left(spaces, func(name string) {
		pids, _ := exec.Command("ip", "netns", "pids", name).Output()
		for field := range strings.FieldsSeq(string(pids)) {
			if pid, err := strconv.Atoi(field); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		exec.Command("ip", "netns", "del", name).Run()
	})
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "stsh*"))
	left([]byte(strings.Join(dirs, "\n")), func(name string) { os.RemoveAll(filepath.Join(os.TempDir(), name)) })
	links, _ := exec.Command("ip", "-o", "link", "show").Output()
	left(links, func(name string) { exec.Command("ip", "link", "del", name).Run() })
}

// freePrefix finds a private network that this machine has no address in.
func freePrefix(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		prefix := fmt.Sprintf("10.%d.%d.", 128+mathrand.IntN(128), mathrand.IntN(256))
		ip, taken := net.ParseIP(prefix+"1"), false
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.Contains(ip) {
				taken = true
			}
		}
		if !taken {
			return prefix
		}
	}
	t.Fatal("no free network of 10.0.0.0/8 was found")
	return ""
}
