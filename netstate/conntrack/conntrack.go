// Package conntrack reads and forgets connections that the kernel tracks (linux/netfilter/nfnetlink_conntrack.h).
package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// Connection is one by its ends, whatever its addresses are translated to on their way: From opened it, To answers.
type Connection struct {
	From, To netip.AddrPort
	Protocol uint8 // IANA's number of TCP or UDP
}

const familyHeader = 4 // struct nfgenmsg

// Table is the connections of the network namespace of the thread that opened it. Several goroutines may use it.
type Table struct {
	mu   sync.Mutex
	conn *rtnl.Conn
}

// Open opens the table.
func Open() (*Table, error) {
	conn, err := rtnl.DialNetfilter()
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return &Table{conn: conn}, nil
}

// Close closes the socket.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn.Close()
}

// Each calls a function with each connection of TCP and UDP, but not with those in other zones than 0.
func (t *Table) Each(f func(Connection)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.conn.List(request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, unix.AF_UNSPEC), func(data []byte) error {
		if c, ok := parse(data); ok {
			f(c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the connections that the kernel tracks: %w", err)
	}
	return nil
}

func request(message, flags int, family uint8) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// parse reads an entry. It is not ok if that is none that Each tells of.
func parse(data []byte) (c Connection, ok bool) {
	if len(data) < familyHeader {
		return c, false
	}
	var reply Connection
	for kind, value := range rtnl.Attributes(data[familyHeader:]) {
		switch kind {
		case nl.CTA_ZONE:
			return c, false
		case nl.CTA_TUPLE_ORIG:
			c, ok = parseTuple(value)
		case nl.CTA_TUPLE_REPLY:
			reply, _ = parseTuple(value)
		}
	}
	c.To = reply.From
	return c, ok && c.To.IsValid()
}

// parseTuple reads the addresses and ports of one direction. It is not ok if that is of neither TCP nor UDP.
func parseTuple(data []byte) (c Connection, ok bool) {
	var from, to netip.Addr
	for kind, value := range rtnl.Attributes(rtnl.Attribute(data, 0, nl.CTA_TUPLE_IP)) {
		switch kind {
		case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
			from, _ = netip.AddrFromSlice(value)
		case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
			to, _ = netip.AddrFromSlice(value)
		}
	}
	var source, destination uint16
	for kind, value := range rtnl.Attributes(rtnl.Attribute(data, 0, nl.CTA_TUPLE_PROTO)) {
		switch {
		case kind == nl.CTA_PROTO_NUM && len(value) == 1:
			c.Protocol = value[0]
		case kind == nl.CTA_PROTO_SRC_PORT && len(value) == 2:
			source = binary.BigEndian.Uint16(value)
		case kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
			destination = binary.BigEndian.Uint16(value)
		}
	}
	c.From, c.To = netip.AddrPortFrom(from, source), netip.AddrPortFrom(to, destination)
	return c, from.IsValid() && to.IsValid() && (c.Protocol == unix.IPPROTO_TCP || c.Protocol == unix.IPPROTO_UDP)
}
