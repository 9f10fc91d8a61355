package link

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// owners know which end a connection comes from: its socket is in the kernel's
// table by its two addresses, with the inode that a process has open.
//
// A look at the table and at all descriptors takes milliseconds when there are
// thousands. So one goroutine looks for all who have asked meanwhile.
type owners struct {
	scanners sync.WaitGroup

	mu        sync.Mutex
	processes map[int]process
	asked     []*question
	scanning  bool
}

type process struct {
	end     string
	started string // tells it from a later process with the same id
}

type question struct {
	key    string // of the dialler's socket in the table
	answer chan answer
	// Of the scan:
	inode string
}

type answer struct {
	end string
	err error
}

// errNobody: the dialler has closed the connection, or has ended.
var errNobody = errors.New("no process has the other end of the connection")

func (o *owners) started(end string, pid int) {
	s, err := readStat(pid)
	if err != nil {
		return // it has ended already
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.processes[pid] = process{end, s.started}
}

// ended forgets the processes of an end.
func (o *owners) ended(end string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pid, p := range o.processes {
		if p.end == end {
			delete(o.processes, pid)
		}
	}
}

// of is the end whose process dialled from one address to another. A process
// that nobody has told of is the host's.
func (o *owners) of(from, to *net.TCPAddr) (string, error) {
	q := &question{key: tableKey(from) + " " + tableKey(to), answer: make(chan answer, 1)}
	o.mu.Lock()
	o.asked = append(o.asked, q)
	if !o.scanning {
		o.scanning = true
		o.scanners.Go(o.scan)
	}
	o.mu.Unlock()
	a := <-q.answer
	return a.end, a.err
}

// scan answers questions until there are none.
func (o *owners) scan() {
	for {
		o.mu.Lock()
		asked := o.asked
		o.asked = nil
		if len(asked) == 0 {
			o.scanning = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		o.resolve(asked)
	}
}

func (o *owners) resolve(asked []*question) {
	// While connections come and go, one pass over the table may miss some.
	open := asked
	var err error
	for range 3 {
		if err = findInodes(open); err != nil {
			break
		}
		var missing []*question
		for _, q := range open {
			if q.inode == "" {
				missing = append(missing, q)
			}
		}
		if open = missing; len(open) == 0 {
			break
		}
	}
	wanted := map[string][]*question{}
	for _, q := range asked {
		switch {
		case err != nil:
			q.answer <- answer{err: err}
		case q.inode == "" || q.inode == "0":
			q.answer <- answer{err: errNobody}
		default:
			wanted[q.inode] = append(wanted[q.inode], q)
		}
	}
	o.answerByProcesses(wanted)
	for _, questions := range wanted {
		for _, q := range questions {
			q.answer <- answer{end: Host}
		}
	}
}

// answerByProcesses looks through the processes that are known, and then
// through their children that are new. It takes out of wanted what it answers.
func (o *owners) answerByProcesses(wanted map[string][]*question) {
	o.mu.Lock()
	known := map[int]process{}
	for pid, p := range o.processes {
		known[pid] = p
	}
	o.mu.Unlock()
	if len(known) == 0 {
		return
	}
	gone := map[int]process{}
	look := func(pid int, p process) {
		if len(wanted) == 0 {
			return
		}
		found := socketsOf(pid, wanted)
		if len(found) == 0 {
			return
		}
		if s, err := readStat(pid); err == nil && s.started != p.started {
			gone[pid] = p // its id was given to another
			return
		}
		for _, inode := range found {
			for _, q := range wanted[inode] {
				q.answer <- answer{end: p.end}
			}
			delete(wanted, inode)
		}
	}
	for pid, p := range known {
		look(pid, p)
	}
	if len(wanted) == 0 {
		o.learn(nil, gone)
		return
	}
	all := allProcesses()
	for pid, p := range known {
		if s, ok := all[pid]; !ok || s.started != p.started {
			gone[pid] = p
			delete(known, pid)
		}
	}
	// Children, and the rest of a process group whose leader is known: a child
	// whose parent has ended is nobody's child.
	added := map[int]process{}
	for again := true; again; {
		again = false
		for pid, s := range all {
			if _, ok := known[pid]; ok {
				continue
			}
			p, ok := known[s.parent]
			if !ok {
				p, ok = known[s.group]
			}
			if ok {
				known[pid] = process{p.end, s.started}
				added[pid] = known[pid]
				again = true
			}
		}
	}
	for pid, p := range added {
		look(pid, p)
	}
	o.learn(added, gone)
}

func (o *owners) learn(added, gone map[int]process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pid, p := range gone {
		if o.processes[pid] == p {
			delete(o.processes, pid)
		}
	}
	for pid, p := range added {
		if _, ok := o.processes[pid]; !ok {
			o.processes[pid] = p
		}
	}
}

// tableKey is an IPv4 address as /proc/net/tcp has it: the address a word of the
// machine's byte order.
func tableKey(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
}

// findInodes looks for the sockets in the kernel's tables. One that is not there
// keeps an empty inode; "0" is one that no process has open any more.
func findInodes(questions []*question) error {
	byKey := map[string]*question{}
	for _, q := range questions {
		byKey[q.key] = q
	}
	// In the second table a socket for IPv6 has an IPv4 address behind these, as
	// those of Java do.
	mapped := fmt.Sprintf("%08X%08X%08X", 0, 0, binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))
	for _, table := range []struct{ file, prefix string }{{"tcp", ""}, {"tcp6", mapped}} {
		content, err := os.Open("/proc/net/" + table.file)
		if errors.Is(err, os.ErrNotExist) && table.prefix != "" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		lines := bufio.NewReaderSize(content, 256<<10)
		for {
			line, err := lines.ReadSlice('\n')
			if err != nil {
				break
			}
			// "   0: 0100007F:1F90 0100007F:D2A4 01 …", the inode is the tenth field.
			_, rest, _ := bytes.Cut(line, []byte(": "))
			skip := len(table.prefix)
			length := 2*(skip+len("0100007F:1F90")) + 1
			if len(rest) < length || string(rest[:skip]) != table.prefix {
				continue
			}
			local, remote, _ := bytes.Cut(rest[skip:length], []byte(" "))
			key := make([]byte, 0, 32)
			key = append(append(append(key, local...), ' '), bytes.TrimPrefix(remote, []byte(table.prefix))...)
			if q := byKey[string(key)]; q != nil {
				if fields := strings.Fields(string(rest)); len(fields) > 8 {
					q.inode = fields[8]
				}
			}
		}
		content.Close()
	}
	return nil
}

// socketsOf are those of the wanted inodes that a process has open.
func socketsOf(pid int, wanted map[string][]*question) (found []string) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	f, err := os.Open(dir)
	if err != nil {
		return nil // ended
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		// A descriptor that was closed meanwhile has no link; it is not asked for.
		link, _ := os.Readlink(dir + "/" + name)
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			if inode = strings.TrimSuffix(inode, "]"); wanted[inode] != nil {
				found = append(found, inode)
			}
		}
	}
	return found
}

type stat struct {
	parent, group int
	started       string
}

func readStat(pid int) (s stat, err error) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return s, err
	}
	// The name, in parentheses, may have spaces and parentheses in it.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 20 {
		return s, fmt.Errorf("reading the state of process %d", pid)
	}
	s.parent, _ = strconv.Atoi(fields[1])
	s.group, _ = strconv.Atoi(fields[2])
	s.started = fields[19]
	return s, nil
}

func allProcesses() map[int]stat {
	all := map[int]stat{}
	f, err := os.Open("/proc")
	if err != nil {
		return all
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			all[pid] = s
		}
	}
	return all
}
