package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mtu is the size of the largest packet, as on Ethernet.
const mtu = 1500

// openTUN makes a TUN device in the namespace of the calling thread: what the
// kernel sends to the device is read from the file, one packet at a time, and what
// is written to the file the kernel receives. The device is gone when the file is
// closed, whoever closes it, also the kernel after a kill -9. Where the pattern has
// %d the kernel puts a free number.
func openTUN(pattern string) (_ *os.File, name string, err error) {
	// The file is not opened with os.OpenFile: it can be polled only once the
	// device is attached.
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(pattern)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, "", fmt.Errorf("making the TUN device %s: %w", pattern, err)
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), request.Name(), nil
}
