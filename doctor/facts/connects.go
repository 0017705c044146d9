package facts

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
)

// closedPort is a port that nothing listens on: a host answers a connection with a reset.
const closedPort = 1

// connect notes which of the peers that answer no pings answer a connection: a host may ignore pings.
func connect(all []doctor.Probe) error {
	var to []netip.Addr
	var silent []*doctor.Probe
	for i := range all {
		if p := &all[i]; !p.OK {
			to, silent = append(to, p.To), append(silent, p)
		}
	}
	answers, err := connects(to)
	for i, p := range silent {
		p.Connects = err == nil && answers[i]
	}
	return err
}

// connectPause is how long to wait before connections are looked at again.
const connectPause = 5 * time.Millisecond

// connects reports which hosts accept or refuse a connection, as opposed to silence. It asks all at once, from sockets of the
// calling thread: other threads may be in another namespace.
func connects(to []netip.Addr) (answers []bool, err error) {
	answers = make([]bool, len(to))
	asked := map[int]*connection{}
	for i, a := range to {
		c, err := newConnection(a)
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", a, err)
		}
		defer unix.Close(c.fd)
		asked[i] = c
	}
	again := time.NewTicker(connectPause)
	defer again.Stop()
	for end := time.Now().Add(replyTimeout); len(asked) > 0 && time.Now().Before(end); <-again.C {
		for i, c := range asked {
			var pending bool
			if answers[i], pending = c.look(); !pending {
				delete(asked, i)
			}
		}
	}
	return answers, nil
}

// connection is one that does not block.
type connection struct {
	fd int
	to unix.Sockaddr
}

func newConnection(to netip.Addr) (*connection, error) {
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: closedPort, Addr: to.As16()})
	if to.Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: closedPort, Addr: to.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return &connection{fd, at}, err
}

// look begins to connect, or reports what has become of that.
func (c *connection) look() (answered, pending bool) {
	err := unix.Connect(c.fd, c.to)
	answered = err == nil || errors.Is(err, unix.EISCONN) || errors.Is(err, unix.ECONNREFUSED)
	return answered, errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY)
}
