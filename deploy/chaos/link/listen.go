package link

import (
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen opens a TCP port at an end: it can be dialled from wherever packets
// reach the end. A socket stays in the namespace in which it was made, so this
// program accepts its connections as any others.
func (r *Router) Listen(end string) (net.Listener, error) {
	r.mu.Lock()
	p := r.ports[end]
	r.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("there is no end %s to listen at", end)
	}
	var l net.Listener
	err := within(p.space, func() (err error) {
		l, err = net.Listen("tcp4", net.JoinHostPort(p.address, "0"))
		return err
	})
	return l, err
}

// within calls a function in a namespace, "" being the program's own, on a thread
// that is in no other goroutine's hands meanwhile.
func within(space string, do func() error) error {
	if space == "" {
		return do()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := os.Open("/run/netns/" + space)
	if err != nil {
		return err
	}
	defer other.Close()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the namespace %s: %w", space, err)
	}
	err = do()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		// A thread in the wrong namespace must not run anything else. It is not
		// ended either: the kernel would kill the processes that it has started.
		panic(fmt.Sprintf("leaving the namespace %s: %v", space, back))
	}
	return err
}

// Up and Down are there because others have to know: a port without a process
// refuses by itself.
func (r *Router) Up(string) error   { return nil }
func (r *Router) Down(string) error { return nil }

// Listen opens a TCP port of loopback, which can be dialled whatever the rules
// say: clients have no fronts.
func (r *Relay) Listen(string) (net.Listener, error) { return net.Listen("tcp4", "127.0.0.1:0") }
