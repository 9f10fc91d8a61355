package drivers

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Connections are the established TCP connections of the process, in whichever
// network namespace it is: the remote address by the socket's inode. So it is
// known which node a client of an SDK has chosen, which no SDK tells.
func (p *Process) Connections() (map[string]string, error) {
	dir := filepath.Join("/proc", strconv.Itoa(p.PID()))
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, e := range entries {
		// A descriptor that was closed meanwhile has no link; it is not asked for.
		link, _ := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	found := map[string]string{}
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(filepath.Join(dir, "net", table))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			const established = "01"
			if len(fields) < 10 || fields[3] != established || !own[fields[9]] {
				continue
			}
			if found[fields[9]], err = procAddress(fields[2]); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// procAddress reads an address as /proc/net/tcp has it: words of the machine's
// byte order in hexadecimal, here little-endian, and a port.
func procAddress(s string) (string, error) {
	host, port, ok := strings.Cut(s, ":")
	ip, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || err2 != nil || len(ip)%4 != 0 {
		return "", fmt.Errorf("reading the address %q", s)
	}
	for i := 0; i < len(ip); i += 4 {
		ip[i], ip[i+1], ip[i+2], ip[i+3] = ip[i+3], ip[i+2], ip[i+1], ip[i]
	}
	return net.JoinHostPort(net.IP(ip).String(), strconv.FormatUint(number, 10)), nil
}
