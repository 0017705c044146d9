package rtnl

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestDial: a socket has the bounds and the room that Do counts on, and its address is the one the kernel knows.
func TestDial(t *testing.T) {
	c := dial(t)
	for _, side := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		got, err := unix.GetsockoptTimeval(c.fd, unix.SOL_SOCKET, side)
		if err != nil || got.Nano() != Timeout.Nanoseconds() {
			t.Errorf("option %d is %v, %v, want %s", side, got, err, Timeout)
		}
	}
	if got, err := unix.GetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK); err != nil || got != 1 {
		t.Errorf("NETLINK_CAP_ACK is %d, %v", got, err)
	}
	if got, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || got < receiveBuffer {
		t.Errorf("the receive buffer is %d bytes, %v, want at least %d", got, err, receiveBuffer)
	}
	addr, err := unix.Getsockname(c.fd)
	if err != nil || c.Port() == 0 || addr.(*unix.SockaddrNetlink).Pid != c.Port() {
		t.Errorf("the port is %d, the kernel says %+v, %v", c.Port(), addr, err)
	}
}

// TestDialRefused: Dial returns the kernel's error, whichever of its system calls fails, and leaves no file open.
func TestDialRefused(t *testing.T) {
	for name, call := range map[string]uint32{
		"socket": unix.SYS_SOCKET, "bind": unix.SYS_BIND, "getsockname": unix.SYS_GETSOCKNAME,
	} {
		netstatetest.Refuse(t, unix.EDQUOT, func() {
			before := files(t)
			if c, err := Dial(); !errors.Is(err, unix.EDQUOT) || c != nil {
				t.Errorf("%s: %v, %v", name, c, err)
			}
			if after := files(t); after != before {
				t.Errorf("%s: %d files are open, want %d", name, after, before)
			}
		}, call)
	}
}

// files returns how many files this process has open.
func files(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Error(err)
	}
	return len(list)
}

// TestDoFailsOnce: one error among many requests is returned, wherever it stands.
func TestDoFailsOnce(t *testing.T) {
	for name, test := range map[string]struct{ requests, fails int }{
		"before a success": {2, 0}, "in the first batch": {MaxBatch + 2, 0}, "in the last batch": {MaxBatch + 2, MaxBatch},
		"last": {2, 1},
	} {
		c := dial(t)
		var requests []*nl.NetlinkRequest
		for i := range test.requests {
			requests = append(requests, route(i, i == test.fails))
		}
		errs := c.Do(requests...)
		if len(errs) != test.requests || !errors.Is(errs[test.fails], unix.ENETUNREACH) ||
			errors.Join(errs...).Error() != errs[test.fails].Error() {
			t.Errorf("%s: %v", name, errors.Join(errs...))
		}
	}
}

// TestDoOtherMessages: neither an answer to an earlier request nor a message that is no answer is an error.
func TestDoOtherMessages(t *testing.T) {
	c := dial(t)
	late := route(1, true)
	if err := c.send(late.Serialize()); err != nil {
		t.Fatal(err)
	}
	echo := route(2, false)
	echo.Flags |= unix.NLM_F_ECHO
	if errs := c.Do(echo, route(3, false)); errs != nil {
		t.Errorf("two requests that succeed: %v", errs)
	}
}

// TestDoClosed: each request has the socket's error.
func TestDoClosed(t *testing.T) {
	c := dial(t)
	c.Close()
	if errs := c.Do(route(1, false), route(2, false)); len(errs) != 2 || !errors.Is(errs[0], unix.EBADF) ||
		!errors.Is(errs[1], unix.EBADF) {
		t.Errorf("got %v", errs)
	}
}

// TestListFails: List returns the errors of the kernel, of the socket and of do.
func TestListFails(t *testing.T) {
	c := dial(t)
	link := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	link.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: 1}})
	broken := errors.New("broken")
	if err := c.List(link, func([]byte) error { return broken }); err != broken {
		t.Errorf("do fails for a single object: %v", err)
	}
	short := unix.NsecToTimeval(50e6)
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &short); err != nil {
		t.Fatal(err)
	}
	ignore := func([]byte) error { return nil }
	if err := c.List(route(1, false), ignore); !errors.Is(err, unix.EAGAIN) { // asks for no answer
		t.Errorf("without an answer: %v", err)
	}
	c.in = c.in[:100]
	if err := c.List(link, ignore); err == nil || errors.Is(err, unix.EAGAIN) {
		t.Errorf("a message that is larger than the buffer: %v", err)
	}
}

// TestListAfterAnother: what is left of a list that was given up is not part of the next one.
func TestListAfterAnother(t *testing.T) {
	c := dial(t)
	for i := range 3 {
		if err := errors.Join(c.Do(route(i, false))...); err != nil {
			t.Fatal(err)
		}
	}
	all := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	all.AddData(&nl.RtMsg{})
	broken := errors.New("broken")
	if err := c.List(all, func([]byte) error { return broken }); err != broken {
		t.Errorf("given up: %v", err)
	}
	if n := routes(t, c); n != 3 {
		t.Errorf("%d routes, want 3", n)
	}
}

// TestAttributeOfHeader: behind a header that fills the data there is nothing, which is not the same as no header.
func TestAttributeOfHeader(t *testing.T) {
	if got := Attribute(make([]byte, 4), 4); got == nil || len(got) != 0 {
		t.Errorf("behind the header is %v", got)
	}
	if got := Attribute(make([]byte, 3), 4); got != nil {
		t.Errorf("behind a short header is %v", got)
	}
}

// TestDoLargeRequests: a batch fits into the send buffer, also where each request has many attributes.
func TestDoLargeRequests(t *testing.T) {
	c := dial(t)
	var requests []*nl.NetlinkRequest
	for i := range 3000 {
		r := route(i, false)
		r.AddData(nl.NewRtAttr(unix.RTA_PAD, make([]byte, 256)))
		requests = append(requests, r)
	}
	if err := errors.Join(c.Do(requests...)...); err != nil {
		t.Errorf("got %.200v", err)
	}
	if n := routes(t, c); n != len(requests) {
		t.Errorf("%d routes, want %d", n, len(requests))
	}
}
