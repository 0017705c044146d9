// Package conntrack marks and forgets connections that the kernel tracks (linux/netfilter/nfnetlink_conntrack.h).
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// Connection is one whose addresses are not translated, by what its original direction's packets have.
type Connection struct {
	From, To netip.AddrPort
	Protocol uint8 // IANA's number of TCP or UDP
}

// What package nl does not have of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	attrMarkMask, attrStatusMask = 21, 26
	translated                   = 1<<4 | 1<<5 // IPS_SRC_NAT and IPS_DST_NAT
	familyHeader                 = 4           // struct nfgenmsg
)

// Table is the connections of the network namespace of the thread that opened it. Several goroutines may use it.
type Table struct {
	mark uint32
	mu   sync.Mutex
	conn *rtnl.Conn
}

// Open opens the table. Its connections are marked with the bits of mark.
func Open(mark uint32) (*Table, error) {
	conn, err := rtnl.DialNetfilter()
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return &Table{mark: mark, conn: conn}, nil
}

// Close closes the socket.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn.Close()
}

// Mark marks the connections for which a function returns true, and takes the mark off the others. It returns how many it
// has marked. Connections that end meanwhile are no error, and those in other zones than 0 are left alone.
func (t *Table) Mark(want func(Connection) bool) (marked int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var changes []*nl.NetlinkRequest
	err = t.conn.List(t.list(), func(data []byte) error {
		e := parse(data)
		if !e.ok {
			return nil
		}
		if is := e.mark&t.mark != 0; is != want(e.Connection) {
			changes = append(changes, t.change(e, !is))
			if !is {
				marked++
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("list the connections that the kernel tracks: %w", err)
	}
	for _, err := range t.conn.Do(changes...) {
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return marked, fmt.Errorf("mark connections: %w", err)
		}
	}
	return marked, nil
}

// list asks for all connections without translated addresses.
func (t *Table) list() *nl.NetlinkRequest {
	r := request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	r.AddData(nl.NewRtAttr(nl.CTA_STATUS, make([]byte, 4)))
	r.AddData(nl.NewRtAttr(attrStatusMask, binary.BigEndian.AppendUint32(nil, translated)))
	return r
}

// change sets the mark, or takes it off.
func (t *Table) change(e entry, set bool) *nl.NetlinkRequest {
	mark := uint32(0)
	if set {
		mark = t.mark
	}
	r := request(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_ACK, e.family)
	r.AddData(nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, append([]byte(nil), e.tuple...)))
	r.AddData(nl.NewRtAttr(nl.CTA_MARK, binary.BigEndian.AppendUint32(nil, mark)))
	r.AddData(nl.NewRtAttr(attrMarkMask, binary.BigEndian.AppendUint32(nil, t.mark)))
	return r
}

func request(message, flags int, family uint8) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// entry is a Connection as the kernel tells it.
type entry struct {
	Connection

	family uint8
	mark   uint32
	tuple  []byte // the attributes of the original direction
	ok     bool   // it is one
}

func parse(data []byte) (e entry) {
	if len(data) < familyHeader {
		return e
	}
	e.family = data[0]
	for kind, value := range rtnl.Attributes(data[familyHeader:]) {
		switch {
		case kind == nl.CTA_ZONE:
			return entry{}
		case kind == nl.CTA_STATUS && len(value) == 4 && binary.BigEndian.Uint32(value)&translated != 0:
			return entry{}
		case kind == nl.CTA_MARK && len(value) == 4:
			e.mark = binary.BigEndian.Uint32(value)
		case kind == nl.CTA_TUPLE_ORIG:
			e.tuple = value
			e.Connection, e.ok = parseTuple(value)
		}
	}
	return e
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
