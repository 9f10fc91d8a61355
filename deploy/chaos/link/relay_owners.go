package link

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// owners know which end a connection comes from: the kernel knows the inode of
// its socket by its two addresses, and /proc which process has that open.
//
// A look at all descriptors takes milliseconds when there are thousands. So one
// goroutine looks for all who have asked meanwhile, first at descriptors that
// were new connections before, as those of a process that dials again and again
// are, then at those that were not there when it looked before.
type owners struct {
	mark     string // in the environment of processes, before the name of their end
	scanners sync.WaitGroup

	mu        sync.Mutex
	processes map[int]process
	asked     []*question
	scanning  bool

	seen map[process]*descriptors // the scanner's
}

// descriptors are what is known of those of a process, by number.
type descriptors struct {
	before map[string]bool // that were there at the last look
	recent []string        // on which connections were found, the last at the end
}

const maxRecent = 32

// Where to look for a connection.
const (
	atRecent = iota
	atNew
	atAll
)

type process struct {
	pid     int
	end     string
	started string // tells it from a later process with the same id
}

type question struct {
	from, to *net.TCPAddr
	answer   chan answer
	inode    string // found by the scan; "0" is what no process has open any more
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
	o.processes[pid] = process{pid, end, s.started}
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
	q := &question{from: from, to: to, answer: make(chan answer, 1)}
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
	open, err := askKernel(asked)
	// A kernel may have no answers of that kind; then its tables, which are long,
	// are read. While connections come and go, one pass may miss some.
	for range 3 {
		if len(open) == 0 || err != nil {
			break
		}
		err = findInodes(open)
		open = slices.DeleteFunc(open, func(q *question) bool { return q.inode != "" })
	}
	wanted := map[string][]*question{}
	for _, q := range asked {
		switch {
		case q.inode == "" && err != nil:
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

// answerByProcesses looks through the processes that are known and this one,
// and then through children of those that are known. It takes out of wanted what
// it answers.
func (o *owners) answerByProcesses(wanted map[string][]*question) {
	o.mu.Lock()
	known := maps.Clone(o.processes)
	o.mu.Unlock()
	added, gone := map[int]process{}, map[int]process{}
	defer func() { o.learn(added, gone) }()
	look := func(p process, at int) {
		for _, inode := range o.socketsOf(p, at, wanted) {
			if s, err := readStat(p.pid); err == nil && s.started != p.started {
				gone[p.pid] = p // its id was given to another
				return
			}
			for _, q := range wanted[inode] {
				q.answer <- answer{end: p.end}
			}
			delete(wanted, inode)
		}
	}
	candidates := slices.Collect(maps.Values(known))
	if _, told := known[os.Getpid()]; !told {
		candidates = append(candidates, process{os.Getpid(), Host, ""})
	}
	for at := atRecent; at <= atAll; at++ {
		for _, p := range candidates {
			look(p, at)
			if len(wanted) == 0 {
				return
			}
		}
	}
	// Those that Started is still to tell of, by their mark; children; and the
	// rest of a process group whose leader is known: a child
	// whose parent has ended is nobody's child. The kernel does not give the id of
	// a leader that has ended to another while there is somebody in the group.
	all := allProcesses()
	groups := map[int]bool{}
	for _, s := range all {
		groups[s.group] = true
	}
	for pid, p := range known {
		if s, ok := all[pid]; !ok && !groups[pid] || ok && s.started != p.started {
			gone[pid] = p
			delete(known, pid)
		}
	}
	for again := true; again; {
		again = false
		for pid, s := range all {
			if _, ok := known[pid]; ok || pid == os.Getpid() {
				continue
			}
			p, ok := known[s.parent]
			if !ok {
				p, ok = known[s.group]
			}
			if !ok {
				p.end, ok = o.marked(pid)
			}
			if ok {
				known[pid] = process{pid, p.end, s.started}
				added[pid] = known[pid]
				again = true
			}
		}
	}
	for _, p := range added {
		look(p, atAll)
	}
}

func (o *owners) learn(added, gone map[int]process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pid, p := range gone {
		if o.processes[pid] == p {
			delete(o.processes, pid)
		}
		delete(o.seen, p)
	}
	for pid, p := range added {
		if _, ok := o.processes[pid]; !ok {
			o.processes[pid] = p
		}
	}
}

// askKernel asks for each socket by its addresses, and gives back those that
// were not found. Also the socket for IPv6 of a connection over IPv4 is found by
// the addresses of IPv4.
func askKernel(questions []*question) (missing []*question, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return slices.Clone(questions), nil // not every machine lets everybody
	}
	defer unix.Close(fd)
	for _, q := range questions {
		inode, err := inodeOf(fd, q.from, q.to)
		if err != nil {
			missing = append(missing, q)
			continue
		}
		q.inode = inode
	}
	return missing, nil
}

// inodeOf sends a struct inet_diag_req_v2 and reads a struct inet_diag_msg, both
// of linux/inet_diag.h, each behind a struct nlmsghdr.
func inodeOf(fd int, from, to *net.TCPAddr) (string, error) {
	const header, sockDiagByFamily = 16, 20
	native := binary.NativeEndian
	request := make([]byte, header+56)
	native.PutUint32(request, uint32(len(request)))
	native.PutUint16(request[4:], sockDiagByFamily)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST)
	body := request[header:]
	body[0], body[1] = unix.AF_INET, unix.IPPROTO_TCP
	native.PutUint32(body[4:], 1<<32-1) // in any state
	binary.BigEndian.PutUint16(body[8:], uint16(from.Port))
	binary.BigEndian.PutUint16(body[10:], uint16(to.Port))
	copy(body[12:], from.IP.To4())
	copy(body[28:], to.IP.To4())
	native.PutUint64(body[48:], 1<<64-1) // no cookie
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	response := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, response, 0)
	if err != nil {
		return "", err
	}
	if n < header+72 || native.Uint16(response[4:]) != sockDiagByFamily {
		return "", os.ErrNotExist
	}
	return strconv.FormatUint(uint64(native.Uint32(response[header+68:])), 10), nil
}

// tableKey is an IPv4 address as /proc/net/tcp has it: the address a word of the
// machine's byte order.
func tableKey(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
}

// findInodes looks for the sockets in the kernel's tables. One that is not there
// keeps an empty inode.
func findInodes(questions []*question) error {
	byKey := map[string]*question{}
	for _, q := range questions {
		byKey[tableKey(q.from)+" "+tableKey(q.to)] = q
	}
	// In the second table a socket for IPv6 has an IPv4 address behind these, as
	// those of Java do.
	mapped := fmt.Sprintf("%08X%08X%08X", 0, 0, binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))
	for _, table := range []struct{ file, prefix string }{{"tcp", ""}, {"tcp6", mapped}} {
		// Not /proc/net: the process' first thread may be in another namespace.
		content, err := os.Open("/proc/thread-self/net/" + table.file)
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
func (o *owners) socketsOf(p process, at int, wanted map[string][]*question) (found []string) {
	known := o.seen[p]
	if known == nil {
		if o.seen == nil {
			o.seen = map[process]*descriptors{}
		}
		known = &descriptors{before: map[string]bool{}}
		o.seen[p] = known
	}
	dir := "/proc/" + strconv.Itoa(p.pid) + "/fd"
	names := slices.Clone(known.recent)
	if at != atRecent {
		f, err := os.Open(dir)
		if err != nil {
			return nil // ended
		}
		names, _ = f.Readdirnames(-1)
		f.Close()
	}
	for _, name := range names {
		if at == atNew && known.before[name] {
			continue
		}
		// A descriptor that was closed meanwhile has no link; it is not asked for.
		link, _ := os.Readlink(dir + "/" + name)
		inode, ok := strings.CutPrefix(link, "socket:[")
		if inode = strings.TrimSuffix(inode, "]"); !ok || wanted[inode] == nil {
			continue
		}
		found = append(found, inode)
		known.recent = append(slices.DeleteFunc(known.recent, func(n string) bool { return n == name }), name)
		known.recent = known.recent[max(0, len(known.recent)-maxRecent):]
	}
	if at != atRecent {
		clear(known.before)
		for _, name := range names {
			known.before[name] = true
		}
	}
	return found
}

// marked is the end whose Command a process was started by, or one of its
// parents.
func (o *owners) marked(pid int) (end string, ok bool) {
	if o.mark == "" {
		return "", false
	}
	environment, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return "", false // ended, or another user's
	}
	for variable := range bytes.SplitSeq(environment, []byte{0}) {
		if end, ok := bytes.CutPrefix(variable, []byte(o.mark)); ok {
			return string(end), true
		}
	}
	return "", false
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
