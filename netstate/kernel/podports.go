package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// PodPorts reads the marks of pods' ports, for who needs nothing else of the kernel. It is used by one goroutine; only
// Watch's own goroutine runs beside it.
type PodPorts struct{ conn *rtnl.Conn }

// OpenPodPorts opens a socket in the current network namespace.
func OpenPodPorts() (*PodPorts, error) {
	conn, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	return &PodPorts{conn}, nil
}

// Close closes the socket.
func (p *PodPorts) Close() { p.conn.Close() }

// List returns all pods' ports as the CNI plugin made them, by their names, on whatever bridge.
func (p *PodPorts) List() ([]netstate.Port, error) {
	devices, _, err := listDevices(p.conn, func(d device) bool {
		_, ok := d.port()
		return ok
	})
	if err != nil {
		return nil, fmt.Errorf("list pods' ports: %w", err)
	}
	ports := make([]netstate.Port, 0, len(devices))
	for _, d := range devices {
		port, _ := d.port()
		ports = append(ports, port)
	}
	slices.SortFunc(ports, func(a, b netstate.Port) int { return cmp.Compare(a.Name, b.Name) })
	return ports, nil
}

// Watch sends an event whenever a port comes, goes or gets another mark. The channel is closed when ctx is done or the
// subscription broke; then watch again and list everything.
func (p *PodPorts) Watch(ctx context.Context) (<-chan struct{}, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("watch pods' ports: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(watchBuffer), conn.JoinGroup(unix.RTNLGRP_LINK)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch pods' ports: %w", err), conn.Close())
	}
	events := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		defer close(events)
		defer func() {
			if stop() {
				conn.Close()
			}
		}()
		for seen := (marks{}); ; {
			messages, err := conn.Receive()
			if err != nil {
				return
			}
			for _, m := range messages {
				if seen.note(uint16(m.Header.Type), m.Data) {
					notify(events)
				}
			}
		}
	}()
	return events, nil
}

// marks are the ports that messages were about, by name.
type marks map[string]netstate.Port

// note takes in a message, and reports whether it is news of a port. Each port has many messages that are none.
func (s marks) note(kind uint16, m []byte) bool {
	d, err := parseDevice(m)
	if err != nil || m[0] != unix.AF_UNSPEC || kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK {
		return false
	}
	now, marked := d.port()
	was, known := s[d.name()]
	if kind == unix.RTM_DELLINK || !marked {
		delete(s, d.name())
		return known || marked
	}
	s[now.Name] = now
	return now != was
}
