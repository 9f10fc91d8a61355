package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be a process in a namespace: "listen ADDRESS"
// accepts connections until it is killed, "dial ADDRESS" says how that went.
func TestMain(m *testing.M) {
	verb, address, _ := strings.Cut(os.Getenv("FAILOVER_TEST"), " ")
	switch verb {
	case "":
		os.Exit(m.Run())
	case "listen":
		l, err := net.Listen("tcp", address)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("listening")
		for {
			if c, err := l.Accept(); err == nil {
				c.Close()
			}
		}
	case "dial":
		c, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		var timeout net.Error
		switch {
		case err == nil:
			c.Close()
			fmt.Println("accepted")
		case errors.Is(err, syscall.ECONNREFUSED):
			fmt.Println("refused")
		case errors.As(err, &timeout) && timeout.Timeout():
			fmt.Println("silent")
		default:
			fmt.Println(err)
		}
	}
}

func inNamespace(n *network, node, what string) *exec.Cmd {
	args := append(n.inside(node), os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "FAILOVER_TEST="+what)
	return cmd
}

func TestNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	n, err := newNetwork("a", "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			n.close()
		}
	}()
	address := map[string]string{}
	for i, node := range n.nodes {
		address[node] = net.JoinHostPort(n.address(i), "8848")
		cmd := inNamespace(n, node, "listen "+address[node])
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
			t.Fatalf("listening in the namespace of %s: %q, %v", node, line, err)
		}
	}
	dial := func(from, to, want string) {
		t.Helper()
		out, err := inNamespace(n, from, "dial "+to).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("dialling %s from %s: %s (%v), want %s", to, from, got, err, want)
		}
	}
	here := func(to string) {
		t.Helper()
		c, err := net.DialTimeout("tcp", to, time.Second)
		if err != nil {
			t.Errorf("dialling %s from here: %v", to, err)
			return
		}
		c.Close()
	}
	dial("a", address["b"], "accepted")
	dial("b", address["a"], "accepted")
	dial("a", net.JoinHostPort(n.address(1), "8849"), "refused")

	if err := n.cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	dial("a", address["b"], "silent")
	dial("b", address["a"], "silent")
	dial("a", address["c"], "accepted")
	dial("c", address["a"], "accepted")
	dial("c", address["b"], "accepted")
	for _, to := range address {
		here(to)
	}
	if err := n.heal("a", "b"); err != nil {
		t.Fatal(err)
	}
	dial("a", address["b"], "accepted")
	dial("b", address["a"], "accepted")

	// A provider's address on this side can be dialled, one that is nobody's not.
	l, err := net.Listen("tcp", net.JoinHostPort(n.host(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial("a", l.Addr().String(), "accepted")
	dial("a", "192.0.2.1:80", "dial tcp 192.0.2.1:80: connect: network is unreachable")

	closed = true
	if err := n.close(); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"netns list", "-o link show"} {
		out, err := exec.Command("ip", strings.Fields(list)...).CombinedOutput()
		if err != nil || strings.Contains(string(out), n.name) {
			t.Errorf("ip %s after closing: %v, %s", list, err, out)
		}
	}
}

func TestConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before, err := connections(os.Getpid())
	if err != nil {
		t.Skip("not told what connections a process has: ", err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	after, err := connections(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for inode, address := range after {
		if _, old := before[inode]; !old && address == l.Addr().String() {
			found++
		}
	}
	if found != 1 {
		t.Errorf("found %d new connections to %v among %v", found, l.Addr(), after)
	}
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"0000000000000000FFFF00000100007F:22B8": "127.0.0.1:8888",
		"00000000000000000000000001000000:0050": "[::1]:80",
	} {
		if got, err := procAddress(text); err != nil || got != want {
			t.Errorf("procAddress(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}
