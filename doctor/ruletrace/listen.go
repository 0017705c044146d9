package ruletrace

import (
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// readBuffer holds some 10,000 trace messages that are not read yet.
	readBuffer = 8 << 20
	// maxEvents bounds memory. A probe causes some thousand.
	maxEvents = 100_000
	// drainTimeout bounds the wait for the kernel's answer that comes after the last trace message.
	drainTimeout = time.Second
)

// listener receives the kernel's trace messages.
type listener struct {
	conn   *netlink.Conn
	events []event
	done   chan struct{}
}

// listen subscribes to the trace messages of the calling thread's namespace.
func listen() (*listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter socket: %w", err)
	}
	_ = conn.SetReadBuffer(readBuffer) // without the right to force it, the usual size
	if err := conn.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to nf_tables' trace: %w", err)
	}
	l := &listener{conn: conn, done: make(chan struct{})}
	go l.receive()
	return l, nil
}

// receive collects events until the answer to the request of drain comes, or the socket closes.
func (l *listener) receive() {
	defer close(l.done)
	for {
		messages, err := l.conn.Receive()
		if errors.Is(err, unix.ENOBUFS) { // some got lost
			continue
		}
		if err != nil {
			return
		}
		for _, m := range messages {
			switch m.Header.Type {
			case message(unix.NFT_MSG_TRACE):
				l.keep(m.Data)
			case message(unix.NFT_MSG_NEWGEN), netlink.Error:
				return
			}
		}
	}
}

func (l *listener) keep(data []byte) {
	e, err := decode(data)
	switch {
	case err != nil || e.isOurs() && e.packet.empty() && e.handle == 0: // the end of a chain of ours
	case len(l.events) < maxEvents, len(l.events) < 2*maxEvents && e.stops():
		l.events = append(l.events, e)
	}
}

// message returns the netlink type of an nf_tables message.
func message(m uint16) netlink.HeaderType {
	return unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(m)
}

// drain returns all events up to now. The kernel sends a trace message while it handles the packet, so that the
// answer to a request comes after all of them.
func (l *listener) drain() ([]event, error) {
	_, err := l.conn.Send(netlink.Message{
		Header: netlink.Header{Type: message(unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err == nil {
		err = l.conn.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	if err != nil {
		return nil, fmt.Errorf("read nf_tables' trace to its end: %w", err)
	}
	<-l.done
	return l.events, nil
}

func (l *listener) close() {
	l.conn.Close()
	<-l.done
}
