package netstate

import (
	"encoding/base64"
	"fmt"
	"net/netip"
)

// WireGuard is a device of the kernel's WireGuard. Its port and key are a Listener, its peers are Peers. Slot and
// mark as for VXLAN. Cascade: deleting it deletes those too, with its addresses and routes; setting it down ends
// the sessions but keeps the Listener and the Peers (seen on 6.1).
type WireGuard struct {
	Name   string
	MTU    int
	Up     bool
	Marked bool
	Extra  string
}

// Key implements Object.
func (l WireGuard) Key() Key { return Key{Kind: KindLink, Name: l.Name} }

func (l WireGuard) String() string {
	return words("link", l.Name, "wireguard mtu", fmt.Sprint(l.MTU), updown(l.Up), flag(!l.Marked, "unmarked"), l.Extra)
}

// PublicKey is a WireGuard public key (Curve25519). It stands for the private one where a plan or a log speaks of it.
type PublicKey [32]byte

func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Listener is what a WireGuard device listens with. Slot: the device. It cannot be absent, so Diff never deletes it.
type Listener struct {
	Dev    string
	Port   int       // UDP
	Public PublicKey // of the private key that the device has
	Extra  string
}

// Key implements Object.
func (l Listener) Key() Key { return Key{Kind: KindListener, Name: l.Dev} }

// Peer is another end of a WireGuard device. Slot: device and public key. Mark: the device. Cascade: an allowed prefix
// belongs to one peer, so giving it to another takes it away from the first.
type Peer struct {
	Dev       string
	Public    PublicKey
	Endpoint  netip.AddrPort
	Allowed   Allowed // what it may send and gets, sorted; the zero Prefix is none
	Shared    string  // fingerprint of the pre-shared key (netstate/secret), empty if there is none
	Keepalive int     // seconds; 0: none
	Extra     string
}

// Allowed has room for a machine with two records, each with a subnet of both families, and with the subnets of before.
type Allowed [8]netip.Prefix

func (a Allowed) String() string {
	var all [len(a)]string
	for i, p := range a {
		all[i] = match("allowed ", p)
	}
	return words(all[:]...)
}

// Key implements Object.
func (p Peer) Key() Key { return Key{Kind: KindPeer, Name: p.Dev + " " + p.Public.String()} }

func (l Listener) String() string {
	return words("listener dev", l.Dev, "port", fmt.Sprint(l.Port), "key", l.Public.String(), l.Extra)
}

func (p Peer) String() string {
	keepalive := ""
	if p.Keepalive != 0 {
		keepalive = fmt.Sprintf("keepalive %d", p.Keepalive)
	}
	return words("peer", p.Public.String(), "dev", p.Dev, endpoint(p.Endpoint), p.Allowed.String(),
		prefixed("shared ", p.Shared), keepalive, p.Extra)
}

func endpoint(e netip.AddrPort) string {
	if !e.IsValid() {
		return ""
	}
	return "endpoint " + e.String()
}
