//go:build soak

package drift

import (
	"errors"
	"os"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
)

// events counts what the kernel announces in a node, to whoever listens: a repair of that has to be quick.
type events struct {
	conns []*netlink.Conn
	done  sync.WaitGroup

	mu                sync.Mutex
	entries, everyone int // of neighbours and FDB, of everything else
}

// lastGroup is the number of rtnetlink's last multicast group (linux/rtnetlink.h).
const lastGroup = 36

func watchEvents(n *lab.Node) (*events, error) {
	e := &events{}
	for protocol, groups := range map[int][2]uint32{unix.NETLINK_ROUTE: {1, lastGroup},
		unix.NETLINK_NETFILTER: {unix.NFNLGRP_NFTABLES, unix.NFNLGRP_NFTABLES}} {
		err := n.Do(func() error {
			c, err := netlink.Dial(protocol, nil)
			if err != nil {
				return err
			}
			e.conns = append(e.conns, c)
			for g := groups[0]; g <= groups[1]; g++ {
				if err := c.JoinGroup(g); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
			return c.SetReadBuffer(4 << 20)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, c := range e.conns {
		e.done.Go(func() { e.receive(c) })
	}
	return e, nil
}

func (e *events) receive(c *netlink.Conn) {
	for {
		messages, err := c.Receive()
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
			return
		}
		e.mu.Lock()
		for _, m := range messages {
			if m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH {
				e.entries++
			} else {
				e.everyone++
			}
		}
		e.mu.Unlock()
	}
}

// count returns how many there were. Those of neighbours and FDB come by themselves too, and count only if asked for.
func (e *events) count(entries bool) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if entries {
		return e.entries + e.everyone
	}
	return e.everyone
}

func (e *events) close() {
	for _, c := range e.conns {
		_ = c.Close()
	}
	e.done.Wait()
}
