package link

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Addresses of ends are given from the first to the last, once each: what is sent
// to an end that was removed never reaches another.
const (
	hostByte  = 1
	firstByte = 11
	lastByte  = 254
)

// etc is where ip netns exec finds files that stand in for those of /etc.
const etc = "/etc/netns"

// spaces is where ip netns keeps namespaces.
const spaces = "/run/netns"

var endName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]*$`)

// A Router has each end in a network namespace of its own, with one device, a TUN
// whose other side is this program:
//
//	 namespace of a            this program            namespace of b
//	eth0 10.1.2.11/24  ──  port ─ pair ─ port  ──  eth0 10.1.2.12/24
//	                              │ │
//	                             port  ──  the machine's own, 10.1.2.1/24
//
// So it is the switch between them, all protocols meet the same rules, and the
// kernel's TCP meets them as it would anywhere else: what is lost it sends again,
// what is cut it waits for. As with any switch, nobody is told of a cut, nor of an
// address that is not in use. There is no way out of the network, and no IPv6 in it.
// A firewall of the machine may keep the ends from reaching it, not each other.
//
// Packets of one direction never overtake each other. Jitter is drawn anew after as
// long as it is, not for each packet. A rate holds at most 100 ms of it, or 32 KiB;
// what waits for its time, at most 8 MiB; what comes beyond is dropped, and counted.
//
// Methods may be called from several goroutines.
type Router struct {
	name   string // of the host's device, begins those of the namespaces
	prefix [3]byte

	// What does the delaying.
	goroutines sync.WaitGroup

	mu         sync.Mutex
	ports      map[string]*port
	counted    map[string]Count // of ends that were removed
	next       int              // last byte of the next end's address
	nameserver string
	closed     bool
}

var routers atomic.Int32

// NewRouter makes a network that only this program is in. What another one left
// behind, which was killed, it removes before.
func NewRouter() (*Router, error) {
	if err := RouterAvailable(); err != nil {
		return nil, err
	}
	if err := RemoveLeft(); err != nil {
		return nil, fmt.Errorf("removing what is left of an earlier run: %w", err)
	}
	r := &Router{
		name:    namePrefix + strconv.Itoa(os.Getpid()),
		ports:   map[string]*port{},
		counted: map[string]Count{},
		next:    firstByte,
	}
	// The first one has the plain name, which is the one that people type.
	if n := routers.Add(1); n > 1 {
		r.name += "." + strconv.Itoa(int(n))
	}
	var err error
	if r.prefix, err = freePrefix(); err != nil {
		return nil, err
	}
	p, err := r.attach(Host, hostByte)
	if err != nil {
		return nil, err
	}
	r.ports[Host] = p
	return r, nil
}

// RouterAvailable says, to people, why there can be no Router here.
func RouterAvailable() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: gives each node a network namespace of its own")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("needs the command ip (package iproute2)")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return errors.New("needs TUN devices: there is no /dev/net/tun")
	}
	return nil
}

// Add makes an end.
func (r *Router) Add(end string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return errors.New("the router is closed")
	case !endName.MatchString(end):
		return fmt.Errorf("%q is no name for an end: letters, digits and hyphens", end)
	case r.ports[end] != nil:
		return fmt.Errorf("there is an end %s already", end)
	case r.next > lastByte:
		return errors.New("all addresses have been used")
	}
	last := r.next
	r.next++
	p, err := r.attach(end, byte(last))
	if err != nil {
		return fmt.Errorf("adding the end %s: %w", end, err)
	}
	for _, other := range r.ports {
		p.to[other.last].Store(&pair{from: p, to: other})
		other.to[p.last].Store(&pair{from: other, to: p})
	}
	r.ports[end] = p
	return nil
}

// attach makes the namespace of an end, but for the host's, and its device.
func (r *Router) attach(end string, last byte) (_ *port, err error) {
	p := &port{end: end, last: last, done: make(chan struct{})}
	p.address = net.IPv4(r.prefix[0], r.prefix[1], r.prefix[2], last).String()
	pattern, device, in := r.name, "", ""
	if end != Host {
		p.space = r.name + "-" + end
		// The name is its own until it is in the namespace. With the longest id of a
		// process there is room for two digits.
		pattern, in = namePrefix+strconv.Itoa(os.Getpid())+"t%d", "-n "+p.space+" "
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.removeSpace())
		}
	}()
	if end != Host {
		if err := ipAll("netns add " + p.space); err != nil {
			return nil, err
		}
		if err := writeResolvConf(p.space, r.nameserver); err != nil {
			return nil, err
		}
	}
	if p.tun, device, err = openTUN(pattern); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.tun.Close()
		}
	}()
	if end != Host {
		if err = ipAll("link set "+device+" netns "+p.space+" name eth0", in+"link set lo up"); err != nil {
			return nil, err
		}
		device = "eth0"
	}
	err = ipAll(
		// No IPv6 of its own: nobody here could answer.
		in+"link set "+device+" addrgenmode none mtu "+strconv.Itoa(mtu)+" txqueuelen "+strconv.Itoa(tunPackets),
		in+"addr add "+p.address+"/24 dev "+device,
		in+"link set "+device+" up")
	if err != nil {
		return nil, err
	}
	go p.serve(r.prefix)
	return p, nil
}

// tunPackets is how many packets of an end may wait for the switch. They do where
// the processors are busy with something else for a moment, and no rule wants them
// lost: 50 ms of 1 Gbit/s.
const tunPackets = 4096

// Remove removes an end, with all that still runs there. Its address is not given
// again.
func (r *Router) Remove(end string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.ports[end]
	if p == nil || end == Host {
		return fmt.Errorf("there is no end %s to remove", end)
	}
	err := r.detach(p)
	if err != nil {
		err = fmt.Errorf("removing the end %s: %w", end, err)
	}
	return err
}

func (r *Router) detach(p *port) error {
	delete(r.ports, p.end)
	for _, other := range r.ports {
		r.unlink(other, p)
		r.unlink(p, other)
	}
	err := p.tun.Close()
	<-p.done
	return errors.Join(err, p.removeSpace())
}

// unlink ends one direction.
func (r *Router) unlink(from, to *port) {
	pair := from.to[to.last].Swap(nil)
	pair.set(Rule{Cut: true}, &r.goroutines)
	key := Pair(from.end, to.end)
	r.counted[key] = r.counted[key].plus(pair.count())
}

// removeSpace removes the namespace of an end, what runs there, and its files.
func (p *port) removeSpace() error {
	if p.space == "" {
		return nil
	}
	return removeSpace(p.space)
}

// Close removes all that was made. Nothing works any more after it.
func (r *Router) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	var errs []error
	for _, p := range r.ports {
		errs = append(errs, r.detach(p))
	}
	r.goroutines.Wait()
	return errors.Join(errs...)
}

// Set replaces the rule for what one end sends to another, in this direction only.
func (r *Router) Set(from, to string, rule Rule) error {
	if err := rule.Validate(); err != nil {
		return fmt.Errorf("the link from %s to %s: %w", from, to, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a, b := r.ports[from], r.ports[to]
	if a == nil || b == nil || a == b {
		return fmt.Errorf("there is no link from %s to %s", from, to)
	}
	a.to[b.last].Load().set(rule, &r.goroutines)
	return nil
}

// Bind is the address of an end, "" where there is none.
func (r *Router) Bind(end string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.ports[end]; p != nil {
		return p.address
	}
	return ""
}

// Address is the address at which others reach an end: its own.
func (r *Router) Address(end string) string { return r.Bind(end) }

// namespace is the name of an end's namespace, for ip netns exec; "" is that of
// the program.
func (r *Router) namespace(end string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.ports[end]; p != nil {
		return p.space
	}
	return ""
}

// Command is a command that runs in the namespace of an end; ip becomes it, so the
// process that is started is the command's. It has its own view of what is mounted,
// taken when it starts: what it needs has to be mounted before.
func (r *Router) Command(end string, argv ...string) *exec.Cmd {
	r.mu.Lock()
	p := r.ports[end]
	r.mu.Unlock()
	switch {
	case len(argv) == 0:
		return &exec.Cmd{Err: errors.New("no command to run")}
	case p == nil:
		return &exec.Cmd{Err: fmt.Errorf("there is no end %s to run %s at", end, argv[0])}
	case p.space == "":
		return exec.Command(argv[0], argv[1:]...)
	}
	return exec.Command("ip", append([]string{"netns", "exec", p.space}, argv...)...)
}

// Started is there because others have to know: a namespace needs not be told what
// runs in it.
func (r *Router) Started(string, int) {}

// Nameserver sets the address of the DNS server of all ends, but for the host, also
// of those that are added later, and of what runs there: a process that reads
// /etc/resolv.conf again, as Go's and the C library's resolvers do, goes over to it.
func (r *Router) Nameserver(address string) error {
	if net.ParseIP(address) == nil {
		return fmt.Errorf("the name server %q is no IP address", address)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nameserver = address
	var errs []error
	for _, p := range r.ports {
		if p.space != "" {
			errs = append(errs, writeResolvConf(p.space, address))
		}
	}
	return errors.Join(errs...)
}

// writeResolvConf writes what ip netns exec mounts over /etc/resolv.conf. Each end
// has one from the start, since only that is mounted which is there when a process
// starts, and it is written in place, since a file that was renamed to its name
// would be another one: in one piece and always as long, so that nobody reads half
// of it. Without a name server, lookups fail at once: nobody listens at 127.0.0.1,
// while what the machine uses is out of reach.
func writeResolvConf(space, nameserver string) error {
	content := "# No name server.\n"
	if nameserver != "" {
		content = "nameserver " + nameserver + "\n"
	}
	const length = 64 // more than any address needs
	content += strings.Repeat("\n", length-len(content))
	dir := filepath.Join(etc, space)
	err := os.MkdirAll(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		// Another program has just removed the directory above, as its last.
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "resolv.conf"), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(content), 0)
	return errors.Join(err, f.Close())
}

// Counters are what has become of the packets so far, by Pair; also of ends that
// were removed.
func (r *Router) Counters() map[string]Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]Count{}
	maps.Copy(counts, r.counted)
	for _, from := range r.ports {
		for _, to := range r.ports {
			if from != to {
				key := Pair(from.end, to.end)
				counts[key] = counts[key].plus(from.to[to.last].Load().count())
			}
		}
	}
	return counts
}

// freePrefix finds a private network of 256 addresses that this machine has none
// in.
func freePrefix() ([3]byte, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return [3]byte{}, err
	}
	for range 100 {
		prefix := [3]byte{10, byte(128 + mathrand.IntN(128)), byte(mathrand.IntN(256))}
		ip, taken := net.IPv4(prefix[0], prefix[1], prefix[2], hostByte), false
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.Contains(ip) {
				taken = true
			}
		}
		if !taken {
			return prefix, nil
		}
	}
	return [3]byte{}, errors.New("found no free network")
}

// ipAll runs ip with each of the arguments until one fails.
func ipAll(commands ...string) error {
	for _, c := range commands {
		cmd := exec.Command("ip", strings.Fields(c)...)
		// Ctrl-C is for this program, which cleans up, and must not end it halfway.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
