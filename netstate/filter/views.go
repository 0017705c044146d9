package filter

import (
	"net/netip"
	"strconv"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// view is what a rule takes for the source and the destination. The first word of a rule says which one it has.
type view struct{ reversed, ofError bool }

// views are all views by their words. Without one it is the packet as it is. In the forward hook its header has the addresses of
// the connection, in the order of the packet's direction: DNAT comes before, and SNAT behind. An error's header has not, but
// conntrack knows whose error it is.
var views = map[string]view{"": {}, "backwards": {reversed: true}, "errors": {ofError: true}}

// end returns where the header has an end of the packet.
func (v view) end(d nfnl.Direction) nfnl.Direction {
	if v.reversed == (d == nfnl.Source) {
		return nfnl.Destination
	}
	return nfnl.Source
}

// address loads the address of an end, of size bytes, into a register. That of a connection is where its packets, or its replies,
// come from.
func (v view) address(d nfnl.Direction, size int, register uint32) expr.Any {
	if v.ofError {
		return nfnl.LoadSource(d, size, register)
	}
	return nfnl.LoadAddress(v.end(d), size, register)
}

// port loads the destination's port: half of the first word of the transport header, or where replies come from.
func (v view) port(register uint32) expr.Any {
	if v.ofError {
		return nfnl.LoadPort(nfnl.Destination, register)
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2 * uint32(v.end(nfnl.Destination)), Len: 2}
}

// protocol loads the transport protocol into a register.
func (v view) protocol(register uint32) expr.Any {
	if v.ofError {
		return &expr.Ct{Key: expr.CtKeyPROTOCOL, Register: register}
	}
	return loadProtocol(register)
}

// loadProtocol loads the packet's transport protocol into a register.
func loadProtocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// isProtocol matches the packet's transport protocol.
func isProtocol(protocol byte) []expr.Any { return view{}.isProtocol(protocol) }

// clauses are the matches that depend on the view.
func (v view) clauses() []clause {
	return []clause{
		{words: "saddr", encode: v.match(nfnl.Source)},
		{words: "daddr", encode: v.match(nfnl.Destination)},
		{words: "saddr . daddr", encode: func(family netstate.Family, arg string) []expr.Any {
			size := family.Bits() / 8
			return lookup(arg, v.address(nfnl.Source, size, 1), v.address(nfnl.Destination, size, register(size)))
		}},
		{words: "daddr . proto . port", encode: func(family netstate.Family, arg string) []expr.Any {
			size := family.Bits() / 8
			return lookup(arg, v.address(nfnl.Destination, size, 1), v.protocol(register(size)), v.port(register(size+4)))
		}},
		{words: "proto", encode: func(_ netstate.Family, arg string) []expr.Any {
			n, err := strconv.ParseUint(arg, 10, 8)
			if err != nil {
				return nil
			}
			return v.isProtocol(byte(n))
		}},
		{words: "tcp dport", encode: v.ports(unix.IPPROTO_TCP)},
		{words: "udp dport", encode: v.ports(unix.IPPROTO_UDP)},
		{words: "sctp dport", encode: v.ports(unix.IPPROTO_SCTP)},
	}
}

// isProtocol matches a transport protocol.
func (v view) isProtocol(protocol byte) []expr.Any {
	return []expr.Any{v.protocol(1), nfnl.Compare(expr.CmpOpEq, []byte{protocol})}
}

// senderClauses are the matches of errors that are about who sends them.
func (v view) senderClauses() (all []clause) {
	if !v.ofError {
		return nil
	}
	for d, words := range map[nfnl.Direction]string{nfnl.Source: "from . saddr", nfnl.Destination: "from . daddr"} {
		all = append(all, clause{words: words, encode: func(family netstate.Family, arg string) []expr.Any {
			size := family.Bits() / 8
			return lookup(arg, nfnl.LoadAddress(nfnl.Source, size, 1), v.address(d, size, register(size)))
		}})
	}
	return all
}

// mapEnds are the ends that do.
func (v view) mapEnds() []clause {
	return []clause{
		{words: "saddr vmap", encode: v.verdictMap(nfnl.Source)},
		{words: "daddr vmap", encode: v.verdictMap(nfnl.Destination)},
	}
}

// match matches an address by a set or a prefix.
func (v view) match(d nfnl.Direction) func(netstate.Family, string) []expr.Any {
	return func(family netstate.Family, arg string) []expr.Any {
		if e := lookup(arg, v.address(d, family.Bits()/8, 1)); e != nil {
			return e
		}
		p, err := netip.ParsePrefix(arg)
		if err != nil || netstate.FamilyOf(p.Addr()) != family || p != p.Masked() {
			return nil
		}
		if v.ofError {
			return nfnl.CompareLoaded(v.address(d, family.Bits()/8, 1), p)
		}
		return nfnl.ComparePrefix(expr.CmpOpEq, v.end(d), p)
	}
}

func (v view) verdictMap(d nfnl.Direction) func(netstate.Family, string) []expr.Any {
	return func(family netstate.Family, arg string) []expr.Any {
		e := lookup(arg, v.address(d, family.Bits()/8, 1))
		if e != nil {
			e[1].(*expr.Lookup).IsDestRegSet = true // register 0 is the verdict's
		}
		return e
	}
}

// ports matches a destination port "N", or some: "N-M", or a set of them.
func (v view) ports(proto byte) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, arg string) []expr.Any {
		if e := lookup(arg, v.port(1)); e != nil {
			return append(v.isProtocol(proto), e...)
		}
		least, most, ok := numbers(arg, 16)
		if !ok {
			return nil
		}
		return append(v.isProtocol(proto), between(v.port(1), binaryutil.BigEndian.PutUint16(uint16(least)),
			binaryutil.BigEndian.PutUint16(uint16(most)))...)
	}
}
