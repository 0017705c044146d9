package filter

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// frameClauses are what rules about frames have in place of clauses.
var frameClauses = []clause{
	{words: "iifgroup", encode: group(expr.MetaKeyIIFGROUP)},
	{words: "oifgroup", encode: group(expr.MetaKeyOIFGROUP)},
	{words: "ether type", encode: func(_ netstate.Family, arg string) []expr.Any {
		kind, ok := etherTypes[arg]
		if !ok {
			return nil
		}
		return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2},
			nfnl.Compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(kind))}
	}},
	{words: "iifname", encode: func(_ netstate.Family, arg string) []expr.Any { return lookup(arg, incoming()) }},
	{words: "iifname . ip saddr", encode: source(netstate.IPv4)},
	{words: "iifname . ip6 saddr", encode: source(netstate.IPv6)},
	{words: "saddr", encode: framePrefix(nfnl.Source)},
	{words: "daddr", encode: framePrefix(nfnl.Destination)},
}

// etherTypes are linux/if_ether.h's.
var etherTypes = map[string]uint16{"ip": unix.ETH_P_IP, "ip6": unix.ETH_P_IPV6, "arp": unix.ETH_P_ARP}

func group(key expr.MetaKey) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, arg string) []expr.Any {
		n, err := strconv.ParseUint(arg, 10, 32)
		if err != nil {
			return nil
		}
		return []expr.Any{&expr.Meta{Key: key, Register: 1},
			nfnl.Compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(uint32(n)))}
	}
}

// incoming loads the name of the device that a frame came in through.
func incoming() expr.Any { return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1} }

// source looks up the pair of device and source address.
func source(family netstate.Family) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, arg string) []expr.Any {
		return lookup(arg, incoming(), nfnl.LoadAddress(nfnl.Source, family.Bits()/8, register(unix.IFNAMSIZ)))
	}
}

func framePrefix(d nfnl.Direction) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, arg string) []expr.Any {
		p, err := netip.ParsePrefix(arg)
		if err != nil || p != p.Masked() {
			return nil
		}
		return nfnl.ComparePrefix(expr.CmpOpEq, d, p)
	}
}

// encodeSource returns an element of a set for frames.
func encodeSource(kind netstate.SetType, e netstate.Element) ([]nftables.SetElement, error) {
	addr := e.Prefix.Addr()
	fits := kind == netstate.Devices && !e.Prefix.IsValid() ||
		kind != netstate.Devices && e.Prefix.IsSingleIP() && addr.Is4() == (kind == netstate.IPv4Sources)
	plain := e == netstate.Element{Set: e.Set, Dev: e.Dev, Prefix: e.Prefix}
	if !fits || !plain || e.Dev == "" || len(e.Dev) >= unix.IFNAMSIZ || strings.ContainsRune(e.Dev, 0) {
		return nil, misfit(kind, e)
	}
	return []nftables.SetElement{{Key: append(nfnl.Pad([]byte(e.Dev), unix.IFNAMSIZ), addr.AsSlice()...)}}, nil
}

// decodeSource reads the key of an element of a set for frames.
func decodeSource(kind netstate.SetType, key []byte) (e netstate.Element, ok bool) {
	if len(key) < unix.IFNAMSIZ {
		return e, false
	}
	name, addr := key[:unix.IFNAMSIZ], key[unix.IFNAMSIZ:]
	e.Dev = nfnl.CString(name)
	if a, isAddr := netip.AddrFromSlice(addr); isAddr {
		e.Prefix = netstate.Host(a)
	}
	again, err := encodeSource(kind, e)
	return e, err == nil && bytes.Equal(again[0].Key, key)
}
