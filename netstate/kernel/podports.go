package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// PodPorts follows the pods' ports by the kernel's notifications. What was done before List is called is in them already,
// and they wait for no lock: to ask the kernel for its devices does, as long as anybody makes or deletes some.
type PodPorts struct {
	asks   *rtnl.Conn
	hears  *netlink.Conn
	raw    syscall.RawConn // of hears
	buffer []byte

	mu    sync.Mutex
	ports map[int]netstate.Port // as the CNI plugin made them, by index
	known bool                  // ports is complete; else they have to be asked for
}

// OpenPodPorts opens the sockets in the current network namespace.
func OpenPodPorts() (*PodPorts, error) {
	p := &PodPorts{buffer: make([]byte, messageBuffer)}
	var err error
	if p.asks, err = rtnl.Dial(); err != nil {
		return nil, err
	}
	if p.hears, err = netlink.Dial(unix.NETLINK_ROUTE, nil); err == nil {
		err = errors.Join(p.hears.SetReadBuffer(watchBuffer), p.hears.JoinGroup(unix.RTNLGRP_LINK))
	}
	if err == nil {
		p.raw, err = p.hears.SyscallConn()
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("watch pods' ports: %w", err)
	}
	return p, nil
}

// Close closes the sockets.
func (p *PodPorts) Close() {
	p.asks.Close()
	if p.hears != nil {
		_ = p.hears.Close()
	}
}

// List returns all pods' ports as the CNI plugin made them, by their names, on whatever bridge. One that was listed and lost
// its mark since stays as it was, with netstate.Unmarked.
func (p *PodPorts) List() ([]netstate.Port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.hear()
	for try := 0; err == nil && !p.known; try++ { // what happens while it is asked is in the notifications
		if try == maxAsks {
			return nil, errors.New("list pods' ports: devices change faster than they can be read")
		}
		if err = p.ask(); err == nil {
			err = p.hear()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list pods' ports: %w", err)
	}
	return slices.SortedFunc(maps.Values(p.ports), func(a, b netstate.Port) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// maxAsks bounds how often devices are asked for while notifications get lost.
const maxAsks = 5

// ask asks for all devices.
func (p *PodPorts) ask() error {
	devices, _, err := listDevices(p.asks, func(d device) bool {
		_, isPort := p.port(d)
		return isPort
	})
	if err != nil {
		return err
	}
	ports := map[int]netstate.Port{}
	for _, d := range devices {
		ports[d.Index()], _ = p.port(d)
	}
	p.ports, p.known = ports, true
	return nil
}

// port returns the port that a device's mark describes, or what was known of it if it has lost that.
func (p *PodPorts) port(d device) (netstate.Port, bool) {
	if now, marked := d.port(); marked {
		return now, true
	}
	was, known := p.ports[d.Index()]
	if !known || was.MAC != d.mac() { // another device may have the index by now
		return netstate.Port{}, false
	}
	was.Name, was.Extra = d.Name(), netstate.Unmarked
	return was, true
}

// hear takes in the notifications that are there.
func (p *PodPorts) hear() (err error) {
	failed := p.raw.Control(func(fd uintptr) { _, err = p.drain(int(fd)) })
	return errors.Join(failed, err)
}

// drain takes in the notifications that are there, and reports whether ports changed.
func (p *PodPorts) drain(fd int) (changed bool, err error) {
	for {
		n, err := unix.Read(fd, p.buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return changed, nil
		case errors.Is(err, unix.ENOBUFS): // some are lost
			p.known, changed = false, true
		case err != nil:
			return changed, err
		default:
			for h, data := range rtnl.Messages(p.buffer[:n]) {
				changed = p.note(h.Type, data) || changed
			}
		}
	}
}

// note takes in a notification, and reports whether it is news of a port. Each port has many that are none.
func (p *PodPorts) note(kind uint16, m []byte) bool {
	d, err := parseDevice(m)
	if err != nil || m[0] != unix.AF_UNSPEC || p.ports == nil || kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK {
		return false
	}
	was, known := p.ports[d.Index()]
	now, isPort := p.port(d)
	if kind == unix.RTM_DELLINK || !isPort {
		delete(p.ports, d.Index())
		return known
	}
	p.ports[d.Index()] = now
	return now != was
}

// Watch sends an event whenever a port comes, goes or gets another mark. The channel is closed when ctx is done or the
// socket broke.
func (p *PodPorts) Watch(ctx context.Context) (<-chan struct{}, error) {
	if err := p.hears.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("watch pods' ports: %w", err)
	}
	events := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = p.hears.SetReadDeadline(time.Unix(1, 0)) })
	go func() {
		defer close(events)
		defer stop()
		for p.wait() == nil {
			loop.Notify(events)
		}
	}()
	return events, nil
}

// wait returns when ports have changed.
func (p *PodPorts) wait() error {
	var failed error
	err := p.raw.Read(func(fd uintptr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		var changed bool
		changed, failed = p.drain(int(fd))
		return changed || failed != nil
	})
	return errors.Join(err, failed)
}
