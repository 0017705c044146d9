package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// What package nl does not have of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_tcp.h.
const (
	attrFlagsOriginal, attrFlagsReply = 4, 5
	liberal                           = 1 << 3 // IP_CT_TCP_FLAG_BE_LIBERAL: it began with another packet than a SYN
)

// Forget deletes what does not tell who began it: entries of TCP that began in the middle of a connection, and those of UDP, if
// one of their ends has an address in the prefixes, also behind a translated one. The next packet of each begins a new entry. It
// returns how many there were. Those in other zones than 0 are left alone.
func (t *Table) Forget(prefixes []netip.Prefix) (forgotten int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var deletes []*nl.NetlinkRequest
	err = t.conn.List(request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, unix.AF_UNSPEC), func(data []byte) error {
		if tuple := doubtful(data, prefixes); tuple != nil {
			r := request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, data[0])
			r.AddData(nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, slices.Clone(tuple)))
			deletes = append(deletes, r)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("list the connections that the kernel tracks: %w", err)
	}
	for _, err := range t.conn.Do(deletes...) {
		if err != nil && !errors.Is(err, unix.ENOENT) { // it ended meanwhile
			return 0, fmt.Errorf("delete entries of connections: %w", err)
		}
	}
	return len(deletes), nil
}

// doubtful returns the tuple of the original direction of an entry that Forget deletes, and nil of any other.
func doubtful(data []byte, prefixes []netip.Prefix) (tuple []byte) {
	if len(data) < familyHeader {
		return nil
	}
	concerned, midway := false, false
	for kind, value := range rtnl.Attributes(data[familyHeader:]) {
		switch kind {
		case nl.CTA_ZONE:
			return nil
		case nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_REPLY:
			c, ok := parseTuple(value)
			if !ok {
				return nil
			}
			if kind == nl.CTA_TUPLE_ORIG {
				tuple = value
			}
			midway = midway || c.Protocol == unix.IPPROTO_UDP
			concerned = concerned || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool {
				return p.Contains(c.From.Addr()) || p.Contains(c.To.Addr())
			})
		case nl.CTA_PROTOINFO:
			tcp := rtnl.Attribute(value, 0, nl.CTA_PROTOINFO_TCP)
			midway = midway || isLiberal(tcp, attrFlagsOriginal) && isLiberal(tcp, attrFlagsReply)
		}
	}
	if !concerned || !midway {
		return nil
	}
	return tuple
}

// isLiberal reports whether the flags of one direction of TCP are those of an entry that began midway.
func isLiberal(tcp []byte, direction uint16) bool {
	flags := rtnl.Attribute(tcp, 0, direction) // struct nf_ct_tcp_flags
	return len(flags) > 0 && flags[0]&liberal != 0
}
