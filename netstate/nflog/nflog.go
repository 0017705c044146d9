// Package nflog hears of the packets that rules with "log" tell a group of NFLOG (linux/netfilter/nfnetlink_log.h).
//
// It is a dozen attributes over the netlink library that is here anyway, which is less than another library would ask for.
package nflog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// Packet is what a rule told of a packet.
type Packet struct {
	Family netstate.Family
	Prefix string // the rule's
	// In is the number of the device that it came in through, if the family is Ethernet.
	In   int
	Data []byte // its first bytes, from the network header on
}

// Messages, attributes and values of linux/netfilter/nfnetlink_log.h.
const (
	messagePacket, messageConfig = 0, 1

	configCommand, configMode, configThreshold = 1, 2, 5
	commandBind, copyPacket                    = 1, 2

	packetIn, packetPhysicalIn, packetPayload, packetPrefix = 4, 6, 9, 10
)

// most is how many bytes of a packet are heard: the longest IP header, and that of its transport protocol.
const most = 128

// Log hears of packets.
type Log struct{ conn *netlink.Conn }

// Open opens the log of a group, in the network namespace of the thread that calls it. A group has one listener.
func Open(group uint16) (*Log, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		if err = configure(conn, group); err != nil {
			conn.Close()
		}
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("another process listens to the NFLOG group %d, or this one lacks CAP_NET_ADMIN: %w", group, err)
	case errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("want a kernel with NFLOG (CONFIG_NETFILTER_NETLINK_LOG): %w", err)
	case err != nil:
		return nil, fmt.Errorf("listen to the NFLOG group %d: %w", group, err)
	}
	return &Log{conn}, nil
}

// configure binds the socket to a group, and asks for the beginning of each packet at once.
func configure(conn *netlink.Conn, group uint16) error {
	attrs := netlink.NewAttributeEncoder()
	attrs.Bytes(configCommand, []byte{commandBind})
	attrs.Bytes(configMode, []byte{0, 0, 0, most, copyPacket, 0})
	attrs.Bytes(configThreshold, []byte{0, 0, 0, 1})
	data, err := attrs.Encode()
	if err != nil {
		return err
	}
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)
	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | messageConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header, data...),
	})
	for err == nil {
		var messages []netlink.Message
		messages, err = conn.Receive() // packets may come before the answer
		if slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Type == netlink.Error }) {
			break
		}
	}
	return err
}

// Close stops listening.
func (l *Log) Close() error { return l.conn.Close() }

// Each calls a function with each packet until ctx is done, which closes the Log. Packets that come while there is no room
// for them are left out.
func (l *Log) Each(ctx context.Context, do func(Packet)) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer func() {
		if stop() {
			l.Close()
		}
	}()
	for {
		messages, err := l.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("read from NFLOG: %w", err)
		}
		for _, m := range messages {
			if p, ok := parse(m); ok {
				do(p)
			}
		}
	}
}

// families are those of linux/netfilter.h.
var families = map[byte]netstate.Family{
	unix.NFPROTO_IPV4: netstate.IPv4, unix.NFPROTO_IPV6: netstate.IPv6, unix.NFPROTO_BRIDGE: netstate.Ethernet,
}

// parse reads one message. It is not ok if that is not about a packet.
func parse(m netlink.Message) (p Packet, ok bool) {
	if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|messagePacket || len(m.Data) < 4 {
		return p, false
	}
	p.Family = families[m.Data[0]]
	attrs, err := nfnl.ParseAttributes(m.Data[4:])
	if err != nil || p.Family == 0 {
		return p, false
	}
	p.Prefix, p.Data = attrs.String(packetPrefix), attrs[packetPayload]
	if p.Family == netstate.Ethernet {
		in, has := attrs.Uint32(packetPhysicalIn) // of a bridge's port; the other one is then the bridge
		if !has {
			in, _ = attrs.Uint32(packetIn)
		}
		p.In = int(in)
	}
	return p, true
}
