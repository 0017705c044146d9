// Package netstate describes kernel network state as comparable values: the links, addresses, neighbours,
// FDB entries, routes, sysctls and firewall chains that should exist or do exist. Diff turns two States into
// a Plan; netstate/kernel, netstate/firewall and netstate/fake observe and apply it.
//
// Every object is a comparable struct and == is the only equality: an attribute that an Object does not model
// but the kernel reports goes into its Extra field as text, so that an altered object never looks intact.
package netstate

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Kind orders objects by dependency: a later kind may need an earlier one, so adds go up and deletes go down.
type Kind uint8

// The kinds, in the order in which they are created. A neighbour and its FDB entry must stand before the
// route that uses them, or the kernel sends ARP requests for the gateway.
const (
	KindLink Kind = iota + 1
	KindSysctl
	KindOffload
	KindAddr
	KindPort
	KindNeigh
	KindFDB
	KindListener
	KindPeer
	KindPolicy
	KindRoute
	KindShortcut
	KindPodPort
	KindSwitch
	KindProgram
	KindChain
	KindSet
	KindFilter
	KindElement
	KindHook
)

func (k Kind) String() string {
	return [...]string{"none", "link", "sysctl", "offload", "addr", "port", "neigh", "fdb", "listener", "peer", "policy",
		"route", "shortcut", "podport", "switch", "program", "chain", "set", "filter", "element", "hook"}[k]
}

// Key is the slot that an object occupies in the kernel: two objects with the same Key cannot both exist.
// Fields that a kind does not use are zero.
type Key struct {
	Kind   Kind
	Name   string // device (and a peer's key), sysctl or chain
	Prefix netip.Prefix
	MAC    MAC
	Metric int
}

// compare orders keys for stable plans: by kind, then by name, prefix, MAC and metric. Parameters of all devices are
// the last of theirs.
func (k Key) compare(o Key) int {
	return cmp.Or(
		cmp.Compare(k.Kind, o.Kind),
		cmp.Compare(k.ofAll(), o.ofAll()),
		cmp.Compare(k.Name, o.Name),
		comparePrefix(k.Prefix, o.Prefix),
		cmp.Compare(k.MAC.uint64(), o.MAC.uint64()),
		cmp.Compare(k.Metric, o.Metric),
	)
}

// ofAll is 1 for an IPv6 parameter of all devices. It is written after those of single devices: to forward packets
// deletes the default routes that came by router advertisements, but of devices that say otherwise.
func (k Key) ofAll() int {
	if k.Kind == KindSysctl && strings.HasPrefix(k.Name, "net/ipv6/conf/all/") {
		return 1
	}
	return 0
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// Object is one piece of kernel state. Implementations are comparable structs; see guard.go.
type Object interface {
	Key() Key
	String() string // as iproute2 would print it
}

// MAC is an Ethernet hardware address.
type MAC [6]byte

// ParseMAC reads the form aa:bb:cc:dd:ee:ff, upper or lower case.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	if len(s) != 17 {
		return MAC{}, fmt.Errorf("MAC address %q: want the form aa:bb:cc:dd:ee:ff", s)
	}
	for i := range m {
		hi, lo := unhex(s[3*i]), unhex(s[3*i+1])
		if hi|lo > 15 || (i < 5 && s[3*i+2] != ':') {
			return MAC{}, fmt.Errorf("MAC address %q: want the form aa:bb:cc:dd:ee:ff", s)
		}
		m[i] = hi<<4 | lo
	}
	return m, nil
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 0xff
}

// IsUnicast reports whether m can be a device's address: neither zero nor a group address.
func (m MAC) IsUnicast() bool { return m != MAC{} && m[0]&1 == 0 }

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func (m MAC) uint64() (n uint64) {
	for _, b := range m {
		n = n<<8 | uint64(b)
	}
	return n
}

// Host returns the prefix that holds just a: /32 or /128.
func Host(a netip.Addr) netip.Prefix {
	if !a.IsValid() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, a.BitLen())
}
