package drivers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// callTimeout is above what any SDK allows itself for one call, retries included, so that a slow
// call fails with the SDK's own message.
const callTimeout = 40 * time.Second

// A Process is one process that holds an SDK. Its clients share nothing but the process.
type Process struct {
	SDK     *SDK
	Version string        // of the SDK, as the process reports it
	Lacks   []string      // operations that the SDK does not have, likewise
	Log     string        // path of what it writes to standard error
	Ended   chan struct{} // closed when its output has ended

	endErr error // why it ended; read it after Ended is closed
	cmd    *exec.Cmd
	event  func(Event) error

	inMu sync.Mutex
	in   io.WriteCloser

	mu      sync.Mutex
	lastID  int
	waiting map[int]chan Response
}

// A Request is one operation of one client.
type Request struct {
	ID        int    `json:"id"`
	Op        string `json:"op"`
	Client    string `json:"client"`
	Server    string `json:"server,omitempty"`
	Namespace string `json:"namespace"`
	TimeoutMs int64  `json:"timeoutMs,omitempty"`
	// Of "connect" to drivers without an SDK: the pause between two questions over HTTP.
	PollMs int64 `json:"pollMs,omitempty"`

	Service      string     `json:"service,omitempty"`
	Group        string     `json:"group,omitempty"`
	Clusters     []string   `json:"clusters,omitempty"`
	Instance     *Instance  `json:"instance,omitempty"`
	Instances    []Instance `json:"instances,omitempty"`
	Remaining    []Instance `json:"remaining,omitempty"`
	Subscription string     `json:"subscription,omitempty"`
	Page         int        `json:"page,omitempty"`
	Size         int        `json:"size,omitempty"`
}

// A Response is the answer to a request.
type Response struct {
	ID       int        `json:"id"`
	OK       bool       `json:"ok"`
	Error    string     `json:"error"`
	Hosts    []Instance `json:"hosts"`
	Services []string   `json:"services"`
	Count    int        `json:"count"`
	// Of "protected": the service has no more healthy instances than its threshold asks for.
	Protected bool `json:"protected"`
}

// An Event is something that a driver says unasked.
type Event struct {
	Event        string `json:"event"`
	Subscription string `json:"subscription"`

	// Of "push": the call of a listener, at TimeMs of the machine's clock.
	Hosts  []Instance `json:"hosts"`
	TimeMs int64      `json:"timeMs"`

	// Of "change", which a fuzzy watch reports.
	Change  string `json:"change"`
	Group   string `json:"group"`
	Service string `json:"service"`

	// Of "hello", the first line.
	Version string   `json:"version"`
	Lacks   []string `json:"lacks"`
}

// Start starts a process of the SDK. What the SDK writes goes below dir. Events go to the function,
// one at a time, on the goroutine that reads the process's output; its error ends the process.
func Start(sdk *SDK, dir string, event func(Event) error) (*Process, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(dir, "driver.log"))
	if err != nil {
		return nil, err
	}
	defer stderr.Close() // the process has its own handle
	p := &Process{
		SDK:     sdk,
		Log:     stderr.Name(),
		Ended:   make(chan struct{}),
		cmd:     sdk.Command(dir),
		event:   event,
		waiting: map[int]chan Response{},
	}
	p.cmd.Stderr = stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the %s driver: %w", sdk.Name, err)
	}
	hello := make(chan Event, 1)
	go p.read(out, hello)
	select {
	case e := <-hello:
		p.Version, p.Lacks = e.Version, e.Lacks
		return p, nil
	case <-p.Ended:
		return nil, fmt.Errorf("the %s driver ended at once: %w", sdk.Name, p.endErr)
	case <-time.After(callTimeout):
		p.Kill()
		return nil, fmt.Errorf("the %s driver said nothing for %v, see %s", sdk.Name, callTimeout, p.Log)
	}
}

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// read hands what the process says to whoever waits for it, until its output ends.
func (p *Process) read(out io.Reader, hello chan<- Event) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = p.receive(line, hello)
		}
		if err != nil {
			p.cmd.Process.Kill() // also after a line that is none of ours; harmless after the end
			p.cmd.Wait()
			p.endErr = fmt.Errorf("%w (%v), see %s", err, p.cmd.ProcessState, p.Log)
			close(p.Ended)
			return
		}
	}
}

func (p *Process) receive(line []byte, hello chan<- Event) error {
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("reading %q: %w", bytes.TrimSpace(line), err)
	}
	switch e.Event {
	case "hello":
		hello <- e
		return nil
	case "":
	default:
		return p.event(e)
	}
	var res Response
	if err := json.Unmarshal(line, &res); err != nil || res.ID == 0 {
		return fmt.Errorf("unexpected line %q", bytes.TrimSpace(line))
	}
	p.mu.Lock()
	waiting := p.waiting[res.ID]
	delete(p.waiting, res.ID)
	p.mu.Unlock()
	if waiting != nil { // else the caller has given up
		waiting <- res
	}
	return nil
}

// Call does one operation. Its error is the SDK's, or says that the process is gone.
func (p *Process) Call(r Request) (Response, error) {
	answer := make(chan Response, 1)
	p.mu.Lock()
	p.lastID++
	r.ID = p.lastID
	p.waiting[r.ID] = answer
	p.mu.Unlock()

	line, err := json.Marshal(r)
	if err != nil {
		return Response{}, err
	}
	p.inMu.Lock()
	_, err = p.in.Write(append(line, '\n'))
	p.inMu.Unlock()
	if err != nil {
		return Response{}, fmt.Errorf("%s: writing to the %s driver: %w, see %s", r.Op, p.SDK.Name, err, p.Log)
	}
	select {
	case res := <-answer:
		if !res.OK {
			return res, fmt.Errorf("%s: %s", r.Op, res.Error)
		}
		return res, nil
	case <-p.Ended:
		return Response{}, fmt.Errorf("%s: the %s driver is gone: %w", r.Op, p.SDK.Name, p.endErr)
	case <-time.After(callTimeout):
		return Response{}, fmt.Errorf("%s: no answer from the %s driver after %v, see %s", r.Op, p.SDK.Name, callTimeout, p.Log)
	}
}

// Close ends the process by ending its input.
func (p *Process) Close() error {
	p.in.Close()
	select {
	case <-p.Ended:
	case <-time.After(10 * time.Second):
		p.Kill()
		return fmt.Errorf("the %s driver did not end with its input, see %s", p.SDK.Name, p.Log)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("the %s driver ended badly: %w", p.SDK.Name, p.endErr)
	}
	return nil
}

// Kill ends the process as "kill -9" does and returns when it is gone.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.Ended
}
