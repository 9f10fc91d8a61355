package main

import (
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// A network puts each node into a network namespace of its own, all on one
// bridge, which is also this program's way to them. So the link between two
// nodes can be cut while clients reach both. It needs root.
type network struct {
	name   string // of the bridge, begins all others
	prefix string // of the addresses, "10.1.2."
	nodes  []string
}

// networkName has the id of the process that made the network, so that one that
// was left behind by a kill -9 can be told from one in use.
var networkName = regexp.MustCompile(`\bstlf(\d+)`)

func newNetwork(nodes ...string) (_ *network, err error) {
	removeLeftNetworks()
	n := &network{name: "stlf" + strconv.Itoa(os.Getpid())}
	if n.prefix, err = freePrefix(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	err = ipAll(
		"link add "+n.name+" type bridge",
		"addr add "+n.host()+"/24 dev "+n.name,
		"link set "+n.name+" up")
	for i, node := range nodes {
		if err != nil {
			return nil, err
		}
		ns, link := n.namespace(node), n.name+node
		if err = ipAll("netns add " + ns); err != nil {
			return nil, err
		}
		n.nodes = append(n.nodes, node)
		err = ipAll(
			"link add "+link+" type veth peer name eth0 netns "+ns,
			"link set "+link+" master "+n.name+" up",
			"-n "+ns+" addr add "+n.address(i)+"/24 dev eth0",
			"-n "+ns+" link set lo up",
			"-n "+ns+" link set eth0 up")
	}
	return n, err
}

func (n *network) host() string                 { return n.prefix + "1" }
func (n *network) address(i int) string         { return n.prefix + strconv.Itoa(11+i) }
func (n *network) namespace(node string) string { return n.name + "-" + node }

// inside is the command that runs another one in the node's namespace, as the
// same process.
func (n *network) inside(node string) []string {
	return []string{"ip", "netns", "exec", n.namespace(node)}
}

// cut makes what two nodes send each other vanish, in both directions. A static
// neighbour with an address that no card has does that without a word, as a
// broken switch does; a blackhole route would tell the sender at once.
func (n *network) cut(a, b string) error {
	return n.neighbours(a, b, "replace", "lladdr 02:00:5e:00:00:01 nud permanent ")
}

// heal takes the cut back.
func (n *network) heal(a, b string) error { return n.neighbours(a, b, "del", "") }

func (n *network) neighbours(a, b, verb, as string) error {
	at := func(node string) string {
		for i, name := range n.nodes {
			if name == node {
				return n.address(i)
			}
		}
		return node
	}
	return ipAll(
		"-n "+n.namespace(a)+" neigh "+verb+" "+at(b)+" "+as+"dev eth0",
		"-n "+n.namespace(b)+" neigh "+verb+" "+at(a)+" "+as+"dev eth0")
}

// close removes all that was made. It may be called after half of it.
func (n *network) close() error {
	var errs []error
	for _, node := range n.nodes {
		// A namespace ends with the last process in it, its link with this command.
		errs = append(errs, ipAll("link del "+n.name+node), ipAll("netns del "+n.namespace(node)))
	}
	return errors.Join(append(errs, ipAll("link del "+n.name))...)
}

// removeLeftNetworks removes what belongs to processes that are gone.
func removeLeftNetworks() {
	left := func(out []byte, remove string) {
		for line := range strings.Lines(string(out)) {
			m := networkName.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			if pid, err := strconv.Atoi(m[1]); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
				name := line[strings.Index(line, m[0]):]
				ipAll(remove + name[:strings.IndexAny(name, " @:\n")])
			}
		}
	}
	spaces, _ := exec.Command("ip", "netns", "list").Output()
	left(spaces, "netns del ")
	links, _ := exec.Command("ip", "-o", "link", "show").Output()
	left(links, "link del ")
}

// freePrefix finds a private network that this machine has no address in.
func freePrefix() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
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
			return prefix, nil
		}
	}
	return "", errors.New("found no free network")
}

// ipAll runs ip with each of the arguments until one fails.
func ipAll(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
