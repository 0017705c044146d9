// Command agnhost stands before Kubernetes' program of that name where the kernel has no SCTP: it connects and listens
// itself, with packets that it makes, which other kernels and their firewalls take for any SCTP. For all else it
// becomes the genuine program.
package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// genuine is Kubernetes' program.
const genuine = "/agnhost-genuine"

// The prefix of the variables that name ports for "agnhost porter".
const portPrefix = "SERVE_SCTP_PORT_"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) < 2 || kernelSpeaksSCTP():
	case args[1] == "connect":
		if to, timeout, ok := target(args[2:]); ok {
			return connect(to, timeout)
		}
	case args[1] == "porter":
		if ports := ports(os.Environ()); len(ports) > 0 {
			return serve(ports)
		}
	}
	return syscall.Exec(genuine, args, os.Environ())
}

func kernelSpeaksSCTP() bool {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, syscall.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// target reads "--timeout=3s --protocol=sctp 10.244.1.2:80". It is not ok if the protocol is another one, or no address
// is found; of that the genuine program knows what to say.
func target(args []string) (to netip.AddrPort, timeout time.Duration, ok bool) {
	timeout = 5 * time.Second
	var host string
	var err error
	for _, arg := range args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "--protocol":
			ok = value == "sctp"
		case "--timeout":
			timeout, err = time.ParseDuration(value)
		default:
			host = arg
		}
		if err != nil {
			return to, 0, false
		}
	}
	if !ok {
		return to, 0, false
	}
	to, err = resolve(host)
	return to, timeout, err == nil
}

// resolve finds the address of a host that may have a name.
func resolve(host string) (netip.AddrPort, error) {
	addr, err := net.ResolveUDPAddr("udp", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	to := addr.AddrPort()
	return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), nil
}

// ports are those that the environment names for SCTP. There are none if it names some for other protocols, too, which
// only the genuine program serves.
func ports(environ []string) map[uint16]bool {
	all := map[uint16]bool{}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "SERVE_") {
			continue
		}
		port, err := strconv.ParseUint(strings.TrimPrefix(name, portPrefix), 10, 16)
		if err != nil {
			return nil
		}
		all[uint16(port)] = true
	}
	return all
}

// What agnhost says of a connection that fails.
var errTimeout = errors.New("TIMEOUT")
