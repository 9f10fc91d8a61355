package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc; USER_HZ is 100 on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// processUsage reads the CPU time and the resident memory of a process.
func processUsage(pid int) (cpu time.Duration, resident int64, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, 0, err
	}
	// The name in parentheses may hold anything, parentheses too.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("%s/stat has %d fields", dir, len(fields))
	}
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s/stat: %w", dir, err)
		}
		cpu += time.Duration(n) * clockTick
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return cpu, kb << 10, err
		}
	}
	return 0, 0, fmt.Errorf("%s/status has no VmRSS", dir)
}

// findServer finds the process that listens on an address of this machine.
func findServer(addr string) (pid int, err error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return 0, err
	}
	if !isLocal(host) {
		return 0, errors.New("it is not on this machine")
	}
	sockets := map[string]bool{} // as links in /proc/…/fd name them
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue // no Linux, or no IPv6
		}
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			// sl local_address rem_address st … inode, with state 0A: listening
			f := strings.Fields(s.Text())
			if len(f) < 10 || f[3] != "0A" {
				continue
			}
			_, hexPort, _ := strings.Cut(f[1], ":")
			if p, err := hex.DecodeString(hexPort); err == nil && len(p) == 2 && uint64(p[0])<<8|uint64(p[1]) == port {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return 0, errors.New("no listening socket in /proc/net/tcp")
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, err
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && sockets[target] {
			return strconv.Atoi(strings.Split(link, "/")[2])
		}
	}
	return 0, errors.New("its process belongs to another user; name it with --server-pid")
}

func isLocal(host string) bool {
	ips, err := net.LookupIP(host)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(ips, func(ip net.IP) bool {
		return ip.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(ip)
		})
	})
}
