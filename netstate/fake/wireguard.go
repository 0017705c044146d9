package fake

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/twill-net/twill/netstate"
)

// deviceOf is the device that an entry stands on.
func deviceOf(o netstate.Object) string {
	if p, ok := o.(netstate.Peer); ok {
		return p.Dev
	}
	return o.Key().Name
}

// putWireGuard makes a WireGuard device, or changes it in place.
func (k *Kernel) putWireGuard(want netstate.WireGuard) error {
	if l, ok := k.links[want.Name]; ok {
		if l.kind == "wireguard" && l.master == "" {
			return k.adjust(l, want.MTU, l.MAC, want.Up)
		}
		k.deleteLink(want.Name)
	}
	err := k.create(&link{VXLAN: netstate.VXLAN{Name: want.Name, MTU: want.MTU, Up: want.Up}, kind: "wireguard", alias: netstate.Mark})
	if err == nil {
		k.entries.Add(netstate.Listener{Dev: want.Name})
	}
	return err
}

// putPeer takes the prefixes that it allows from all other peers of the device.
func (k *Kernel) putPeer(p netstate.Peer) error {
	l, err := k.link(p.Dev)
	if err != nil {
		return err
	}
	if l.kind != "wireguard" {
		return syscall.EOPNOTSUPP
	}
	for _, o := range k.entries {
		other, ok := o.(netstate.Peer)
		if !ok || other.Dev != p.Dev || other.Public == p.Public {
			continue
		}
		other.Allowed = sorted(slices.DeleteFunc(other.Allowed[:], func(a netip.Prefix) bool { return a.IsValid() && slices.Contains(p.Allowed[:], a) }))
		k.entries.Add(other)
	}
	return k.putEntry(p)
}

// sorted has the zero Prefix at the end.
func sorted(prefixes []netip.Prefix) (s netstate.Allowed) {
	prefixes = slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return !p.IsValid() })
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	copy(s[:], prefixes)
	return s
}

// wgSet is "wg set DEV [listen-port N] [fwmark N]" or "wg set DEV peer KEY …".
func (k *Kernel) wgSet(w words) error {
	l, ok := k.entries[netstate.Listener{Dev: w[0]}.Key()].(netstate.Listener)
	if !ok {
		return syscall.ENODEV
	}
	if w.has("peer") {
		return k.wgSetPeer(w)
	}
	if w.has("listen-port") {
		l.Port = w.number("listen-port")
	}
	if w.has("fwmark") {
		l.Extra = "fwmark " + w.after("fwmark")
	}
	return k.putEntry(l)
}

func (k *Kernel) wgSetPeer(w words) error {
	p := netstate.Peer{Dev: w[0]}
	if n, err := base64.StdEncoding.Decode(p.Public[:], []byte(w.after("peer"))); n != len(p.Public) || err != nil {
		return fmt.Errorf("wg set peer %q: want a key", w.after("peer"))
	}
	if w.has("remove") {
		k.remove(p)
		return nil
	}
	if have, ok := k.entries[p.Key()].(netstate.Peer); ok {
		p = have
	}
	if w.has("endpoint") {
		p.Endpoint = netip.MustParseAddrPort(w.after("endpoint"))
	}
	if w.has("persistent-keepalive") {
		p.Keepalive = w.number("persistent-keepalive")
	}
	if w.has("allowed-ips") {
		var allowed []netip.Prefix
		for _, a := range strings.Split(w.after("allowed-ips"), ",") {
			allowed = append(allowed, netip.MustParsePrefix(a))
		}
		p.Allowed = sorted(allowed)
		p.Extra = ""
		slices.SortFunc(allowed, netip.Prefix.Compare)
		if len(allowed) > len(p.Allowed) {
			p.Extra = fmt.Sprintf("allowed %v", allowed[len(p.Allowed):])
		}
	}
	return k.putPeer(p)
}
