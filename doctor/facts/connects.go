package facts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
)

// closedPort is a port that nothing listens on: a host answers a connection with a reset.
const closedPort = 1

// askOthers asks what else there is at peers whose bridge answers no pings, as a host may have rules for what it gets itself: the
// bridge again, and pods. A pod takes the place of a bridge that still is silent, and else it is noted that the bridge answers a
// connection.
func (g *gathering) askOthers(all []doctor.Probe) error {
	var again, pods []doctor.Probe
	var bridges []netip.Addr
	for _, p := range all {
		if p.OK {
			continue
		}
		again, bridges = append(again, p), append(bridges, p.To)
		for _, a := range doctor.FirstPods(p.To) {
			pods = append(pods, newProbe(p.Node, doctor.ProbeOverlay, a, p.Size))
		}
	}
	answers, err := connects(bridges, func() error { return send(again, pods) })
	if err != nil {
		return err
	}
	for i := range all {
		p := &all[i]
		if p.OK {
			continue
		}
		*p, again = again[0], again[1:]
		p.Connects, answers = answers[0] && !p.OK, answers[1:]
		k := slices.IndexFunc(pods, func(o doctor.Probe) bool { return o.OK && o.Node == p.Node })
		if k >= 0 && !p.OK {
			g.unread("the bridge of "+p.Node, fmt.Errorf("it answers no pings, and the pod %s does", pods[k].To))
			*p = pods[k]
		}
	}
	return nil
}

// connectPause is how long to wait before connections are looked at again.
const connectPause = 5 * time.Millisecond

// connects reports which hosts accept or refuse a connection, as opposed to silence. It asks all at once, from sockets of the
// calling thread: other threads may be in another namespace. Meanwhile it does something else.
func connects(to []netip.Addr, meanwhile func() error) (answers []bool, err error) {
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
	look := func() {
		for i, c := range asked {
			var pending bool
			if answers[i], pending = c.look(); !pending {
				delete(asked, i)
			}
		}
	}
	look()
	end := time.Now().Add(replyTimeout)
	if err := meanwhile(); err != nil {
		return nil, err
	}
	again := time.NewTicker(connectPause)
	defer again.Stop()
	for look(); len(asked) > 0 && time.Now().Before(end); look() {
		<-again.C
	}
	return answers, nil
}

func nothing() error { return nil }

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
