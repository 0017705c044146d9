package filter

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// types are all types of sets.
var types = [...]netstate.SetType{
	netstate.Addresses, netstate.Ranges, netstate.PortRanges, netstate.Selves, netstate.NamedPorts, netstate.Verdicts,
	netstate.Devices, netstate.IPv4Sources, netstate.IPv6Sources,
}

// ofFrames reports whether sets of a type are for Ethernet.
func ofFrames(kind netstate.SetType) bool {
	return kind == netstate.Devices || kind == netstate.IPv4Sources || kind == netstate.IPv6Sources
}

// setOf returns a set as nf_tables has it.
func setOf(family netstate.Family, name string, kind netstate.SetType) (*nftables.Set, error) {
	if ofFrames(kind) != (family == netstate.Ethernet) {
		return nil, fmt.Errorf("set %s: the type %q is none of %s", name, kind, family)
	}
	addr := nftables.TypeIPAddr
	if family == netstate.IPv6 {
		addr = nftables.TypeIP6Addr
	}
	s := &nftables.Set{Table: tableOf(family), Name: name, KeyType: addr, KeyByteOrder: binaryutil.BigEndian}
	switch kind {
	case netstate.Devices:
		s.KeyType, s.KeyByteOrder = nftables.TypeIFName, binaryutil.NativeEndian // by which nft prints it
	case netstate.IPv4Sources:
		s.Concatenation, s.KeyType = true, nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
	case netstate.IPv6Sources:
		s.Concatenation, s.KeyType = true, nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIP6Addr)
	case netstate.Addresses:
	case netstate.Ranges:
		s.Interval = true
	case netstate.PortRanges:
		s.Interval, s.KeyType = true, nftables.TypeInetService
	case netstate.Selves:
		s.Concatenation, s.KeyType = true, nftables.MustConcatSetType(addr, addr)
	case netstate.NamedPorts:
		s.Concatenation = true
		s.KeyType = nftables.MustConcatSetType(addr, nftables.TypeInetProto, nftables.TypeInetService)
	case netstate.Verdicts:
		s.IsMap, s.DataType = true, nftables.TypeVerdict
	default:
		return nil, fmt.Errorf("set %s: the type %q is none of %q", name, kind, types)
	}
	return s, nil
}

// header is what the kernel reports of a set.
type header struct {
	name                              string
	flags, keyType, keyLen, dataType  uint32
	size                              uint32
	timeout, gcInterval, exprs, other bool
}

// Attributes of a set that golang.org/x/sys has not.
const (
	setExpr        = 17 // NFTA_SET_EXPR
	setExpressions = 18 // NFTA_SET_EXPRESSIONS
)

func parseSet(attrs nfnl.Attributes) header {
	h := header{name: attrs.String(unix.NFTA_SET_NAME)}
	h.flags, _ = attrs.Uint32(unix.NFTA_SET_FLAGS)
	h.keyType, _ = attrs.Uint32(unix.NFTA_SET_KEY_TYPE)
	h.keyLen, _ = attrs.Uint32(unix.NFTA_SET_KEY_LEN)
	h.dataType, _ = attrs.Uint32(unix.NFTA_SET_DATA_TYPE)
	desc, err := nfnl.ParseAttributes(attrs[unix.NFTA_SET_DESC])
	h.size, _ = desc.Uint32(unix.NFTA_SET_DESC_SIZE)
	_, h.timeout = attrs[unix.NFTA_SET_TIMEOUT]
	_, h.gcInterval = attrs[unix.NFTA_SET_GC_INTERVAL]
	_, one := attrs[setExpr]
	_, more := attrs[setExpressions]
	_, objects := attrs[unix.NFTA_SET_OBJ_TYPE]
	h.exprs, h.other = one || more, objects || err != nil
	return h
}

// typeOf returns the type of a set that is exactly as setOf makes it, and whether it is.
func (h header) typeOf(family netstate.Family) (netstate.SetType, bool) {
	for _, kind := range types {
		if s, err := setOf(family, h.name, kind); err == nil && h == headerOf(s) {
			return kind, true
		}
	}
	return "", false
}

// headerOf returns the header that the kernel reports of a set of ours.
func headerOf(s *nftables.Set) header {
	h := header{name: s.Name, keyType: s.KeyType.GetNFTMagic(), keyLen: s.KeyType.Bytes}
	if s.Interval {
		h.flags |= unix.NFT_SET_INTERVAL
	}
	if s.Concatenation {
		h.flags |= nftables.NFT_SET_CONCAT
	}
	if s.IsMap {
		h.flags |= unix.NFT_SET_MAP
		h.dataType = unix.NFT_DATA_VERDICT
	}
	return h
}
