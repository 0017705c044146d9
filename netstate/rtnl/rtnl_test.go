package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dial opens a socket in a network namespace of its own, whose loopback device is up.
func dial(t *testing.T) *Conn {
	t.Helper()
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	up := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	up.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: 1, Flags: unix.IFF_UP, Change: unix.IFF_UP}})
	if err := errors.Join(c.Do(up)...); err != nil {
		t.Fatal(err)
	}
	return c
}

// route is a request for a route through lo, which fails with a gateway.
func route(i int, gateway bool) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	r.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: 24, Table: unix.RT_TABLE_MAIN, Protocol: 116,
		Type: unix.RTN_UNICAST}})
	r.AddData(nl.NewRtAttr(unix.RTA_DST, []byte{10, byte(i >> 8), byte(i), 0}))
	r.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(1)))
	if gateway {
		r.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, []byte{192, 0, 2, 9}))
	}
	return r
}

func routes(t *testing.T, c *Conn) (n int) {
	t.Helper()
	all := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	all.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET}})
	if err := c.List(all, func(m []byte) error {
		if len(Attribute(m, unix.SizeofRtMsg, unix.RTA_DST)) == 4 && m[5] == 116 {
			n++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDo sends thousands of requests of which each third fails: exactly those have an error, and the others were done.
func TestDo(t *testing.T) {
	c := dial(t)
	var requests []*nl.NetlinkRequest
	for i := range 3000 {
		requests = append(requests, route(i, i%3 == 0))
	}
	errs := c.Do(requests...)
	if len(errs) != len(requests) {
		t.Fatalf("%d errors for %d requests", len(errs), len(requests))
	}
	for i, err := range errs {
		if (i%3 == 0) != errors.Is(err, unix.ENETUNREACH) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if n := routes(t, c); n != 2000 {
		t.Errorf("%d routes, want 2000", n)
	}
	if errs := c.Do(route(3001, false), route(3002, false)); errs != nil {
		t.Errorf("requests without errors: %v", errs)
	}
	if errs := c.Do(); errs != nil {
		t.Errorf("no requests: %v", errs)
	}
}

// TestDoWithoutRoom: the kernel drops answers when there is no room for them, so few requests go at a time.
func TestDoWithoutRoom(t *testing.T) {
	c := dial(t)
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	var requests []*nl.NetlinkRequest
	for i := range 3000 {
		requests = append(requests, route(i, true))
	}
	for i, err := range c.Do(requests...) {
		if !errors.Is(err, unix.ENETUNREACH) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

func TestSocketErrors(t *testing.T) {
	c := dial(t)
	c.Close()
	for i, err := range c.Do(route(1, false), route(2, false)) {
		if !errors.Is(err, unix.EBADF) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := c.List(route(1, false), func([]byte) error { return nil }); !errors.Is(err, unix.EBADF) {
		t.Errorf("list: %v", err)
	}
}

// TestList gets one object, all of a kind, and the error of what is not there. What was left of a list that was
// given up does not disturb the next.
func TestList(t *testing.T) {
	c := dial(t)
	get := func(index int32) *nl.NetlinkRequest {
		r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
		r.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: index}})
		return r
	}
	name := ""
	read := func(m []byte) error {
		name += unix.ByteSliceToString(Attribute(m, unix.SizeofIfInfomsg, unix.IFLA_IFNAME))
		return nil
	}
	if err := c.List(get(1), read); err != nil || name != "lo" {
		t.Errorf("one: %q, %v", name, err)
	}
	if err := c.List(get(99), read); !errors.Is(err, unix.ENODEV) {
		t.Errorf("one that is not there: %v", err)
	}
	broken := errors.New("broken")
	all := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	all.AddData(&nl.RtMsg{})
	if err := c.List(all, func([]byte) error { return broken }); err != broken {
		t.Errorf("given up: %v", err)
	}
	if n := routes(t, c); n != 0 {
		t.Errorf("%d routes, want none", n)
	}
}

// TestInterrupted makes a link while links are listed: the list is not whole, and says so.
func TestInterrupted(t *testing.T) {
	c := dial(t)
	other, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	bridge := func(i int) *nl.NetlinkRequest {
		r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
		r.AddData(&nl.IfInfomsg{})
		r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(fmt.Sprintf("b%d", i))))
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
		r.AddData(info)
		return r
	}
	const many = 200 // some of which do not fit into the part of the list that the kernel makes in advance
	for i := range many {
		if err := errors.Join(c.Do(bridge(i))...); err != nil {
			t.Fatal(err)
		}
	}
	for _, interrupt := range []bool{true, false} {
		all, made := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP), false
		all.AddData(&nl.IfInfomsg{})
		err := c.List(all, func([]byte) error {
			if !interrupt || made {
				return nil
			}
			made = true
			return errors.Join(other.Do(bridge(many))...)
		})
		if errors.Is(err, netlink.ErrDumpInterrupted) != interrupt || !interrupt && err != nil {
			t.Errorf("interrupted %t: %v", interrupt, err)
		}
	}
}

// TestErrno: the end of a list may come without a code.
func TestErrno(t *testing.T) {
	for _, data := range [][]byte{nil, {0, 0, 0}, {0, 0, 0, 0}} {
		if err := errno(data); err != nil {
			t.Errorf("an answer of % x is %v", data, err)
		}
	}
	if err := errno(binary.NativeEndian.AppendUint32(nil, uint32(1<<32-unix.ENOENT))); err != unix.ENOENT {
		t.Errorf("the answer -ENOENT is %v", err)
	}
}

func TestAttribute(t *testing.T) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("veth"))
	data := append(make([]byte, 4), append(nl.NewRtAttr(7, []byte{1}).Serialize(), info.Serialize()...)...)
	if got := Attribute(data, 4, unix.IFLA_LINKINFO, unix.IFLA_INFO_KIND); string(got) != "veth" {
		t.Errorf("got %q", got)
	}
	if got := Attribute(nl.NewRtAttr(7, nil).Serialize(), 0, 7); got == nil || len(got) != 0 {
		t.Errorf("an attribute without a value is %v", got)
	}
	for name, got := range map[string][]byte{"absent": Attribute(data, 4, 9),
		"absent below":   Attribute(data, 4, unix.IFLA_LINKINFO, 9),
		"a short header": Attribute(data[:3], 4, 7), "cut short": Attribute(data[:8], 4,
			7), "of no bytes": Attribute([]byte{0, 0, 7, 0}, 0, 7)} {
		if got != nil {
			t.Errorf("%s: got % x", name, got)
		}
	}
}

// TestMessages: what is cut short ends the datagram.
func TestMessages(t *testing.T) {
	message := func(size uint32, bytes int) []byte {
		return append(binary.NativeEndian.AppendUint32(nil, size), make([]byte, bytes-4)...)
	}
	for _, test := range []struct {
		data []byte
		want []int // sizes of the payloads
	}{
		{nil, nil}, {message(16, 15), nil}, {message(15, 16), nil}, {message(21, 20), nil}, {message(16, 16), []int{0}},
		{message(17, 17), []int{1}}, {append(message(21, 24), message(20, 20)...),
			[]int{5, 4}}, {append(message(20, 20), message(17, 16)...), []int{4}},
	} {
		var got []int
		for _, data := range Messages(test.data) {
			got = append(got, len(data))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("% x: payloads of %d bytes, want %d", test.data, got, test.want)
		}
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0, 10, 0, 0, 1, 5, 0, 7, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		all := 0
		for _, value := range Attributes(data) {
			all += unix.SizeofRtAttr + len(value)
		}
		if all > len(data) {
			t.Errorf("attributes of %d bytes in %d", all, len(data))
		}
	})
}

func TestAddresses(t *testing.T) {
	for _, s := range []string{"10.244.1.7/24", "fd00::7/64", "0.0.0.0/0"} {
		if p := netip.MustParsePrefix(s); Prefix(IPNet(p)) != p {
			t.Errorf("%s became %s", p, Prefix(IPNet(p)))
		}
	}
	if a := Addr(nil); a.IsValid() {
		t.Errorf("no address is %s", a)
	}
}

func TestRetry(t *testing.T) {
	for _, test := range []struct {
		name   string
		fails  int
		err    error
		tries  int
		failed bool
	}{
		{"whole at once", 0, nil, 1, false},
		{"interrupted", 1, netlink.ErrDumpInterrupted, 2, false},
		{"interrupted, wrapped", 1, fmt.Errorf("x: %w", netlink.ErrDumpInterrupted), 2, false},
		{"interrupted by a signal", tries - 1, unix.EINTR, tries, false},
		{"interrupted for ever", 1000, netlink.ErrDumpInterrupted, tries, true},
		{"refused", 1, unix.ENOBUFS, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := 0
			items, err := Retry("things", func() ([]int, error) {
				if calls++; calls <= test.fails {
					return []int{666}, test.err // an interrupted dump gives what it has: it must not be used
				}
				return []int{1, 2}, nil
			})
			if calls != test.tries || (err != nil) != test.failed || err == nil && len(items) != 2 || err != nil &&
				items != nil {
				t.Errorf("%d tries, %v, %v; want %d tries, failed: %t", calls, items, err, test.tries, test.failed)
			}
			if err != nil && (!errors.Is(err, test.err) || !strings.HasPrefix(err.Error(), "list things: ")) {
				t.Errorf("got the error %v", err)
			}
		})
	}
}
