package scale

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// Watch sees every change of links, addresses, neighbours, forwarding entries and routes in a machine's kernel.
type Watch struct {
	conn *netlink.Conn

	mu      sync.Mutex
	seen    map[string]time.Time // objects that stand: "route 10.1.2.0/24", "neigh 10.1.2.0", "fdb 02:00:…", by when they were last written
	writes  int                  // messages so far
	changed chan struct{}
	err     error
}

// watchBuffer is large enough for the messages of 10,000 peers.
const watchBuffer = 256 << 20

// Watch subscribes. What stands already it does not know.
func (m *Machine) Watch() (*Watch, error) {
	w := &Watch{seen: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	err := m.Do(func() (err error) {
		w.conn, err = netlink.Dial(
			unix.NETLINK_ROUTE,
			&netlink.Config{Groups: 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_NEIGH-1) |
				1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1)},
		)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to the kernel of %s: %w", m.Name, err)
	}
	if err := w.conn.SetReadBuffer(watchBuffer); err != nil {
		w.conn.Close()
		return nil, err
	}
	go w.receive()
	return w, nil
}

// Close ends the subscription.
func (w *Watch) Close() error { return w.conn.Close() }

func (w *Watch) receive() {
	for {
		msgs, err := w.conn.Receive()
		now := time.Now()
		w.mu.Lock()
		for _, m := range msgs {
			w.note(m, now)
		}
		w.err = err
		w.mu.Unlock()
		select {
		case w.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (w *Watch) note(m netlink.Message, now time.Time) {
	w.writes++
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_NEWNEIGH, unix.RTM_NEWLINK:
		w.seen[name(m)] = now
	case unix.RTM_DELROUTE, unix.RTM_DELNEIGH, unix.RTM_DELLINK:
		delete(w.seen, name(m))
	}
}

// name is what a message is about. The headers are struct rtmsg (12 bytes), ndmsg (12) and ifinfomsg (16).
func name(m netlink.Message) string {
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		a, _ := netip.AddrFromSlice(rtnl.Attribute(m.Data, unix.SizeofRtMsg, unix.RTA_DST))
		return "route " + netip.PrefixFrom(a, int(m.Data[1])).String()
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return "link " + unix.ByteSliceToString(rtnl.Attribute(m.Data, unix.SizeofIfInfomsg, unix.IFLA_IFNAME))
	}
	if m.Data[0] == unix.AF_BRIDGE {
		return fmt.Sprintf("fdb % x", rtnl.Attribute(m.Data, 12, unix.NDA_LLADDR))
	}
	a, _ := netip.AddrFromSlice(rtnl.Attribute(m.Data, 12, unix.NDA_DST))
	return "neigh " + a.String()
}

// Writes is how many changes there were.
func (w *Watch) Writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

// Until waits until all of the objects stand that were written after since, and returns when the last one was.
func (w *Watch) Until(ctx context.Context, since time.Time, objects ...string) (last time.Time, err error) {
	for {
		last, left, err := w.newest(since, objects)
		if left == "" {
			return last, nil
		}
		if err != nil {
			return last, fmt.Errorf("the kernel's messages were lost: %w", err)
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf(
				"wait for %d objects of the kernel, as yet without %s: %w",
				len(objects),
				left,
				ctx.Err(),
			)
		case <-w.changed:
		}
	}
}

func (w *Watch) newest(since time.Time, objects []string) (last time.Time, left string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range objects {
		at, ok := w.seen[o]
		if !ok || at.Before(since) {
			return last, o, w.err
		}
		if at.After(last) {
			last = at
		}
	}
	return last, "", w.err
}

// Routes, Neighs and FDBs name the kernel's objects for the peers [from, to).
func Routes(from, to int) (objects []string) {
	for i := from; i < to; i++ {
		objects = append(objects, "route "+Subnet(i).String())
	}
	return objects
}

// Objects names all that the kernel must have for the IPv4 part of peer i.
func Objects(i int) []string {
	return []string{"neigh " + Subnet(i).Addr().String(), fdbName(i), "route " + Subnet(i).String()}
}

func fdbName(i int) string {
	return fmt.Sprintf("fdb % x", []byte{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)})
}
