package wireguard

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/secret"
)

// ends are the peers as a device has them: in Mode separate one for each family of a peer, else one for a peer.
func (b *Backend) ends(node backend.Node, peers []peer) []netstate.Peer {
	byKey := map[netstate.Key]netstate.Peer{}
	underlays := map[netstate.Key][]netip.AddrPort{}
	for _, p := range peers {
		if _, ok := node.Underlay(p.Family()); !ok {
			continue
		}
		end := netstate.Peer{Dev: b.deviceOf(p.Family()), Public: netstate.PublicKey(p.key)}
		key := end.Key()
		if have, ok := byKey[key]; ok {
			end = have
		}
		end.Shared, end.Keepalive = secret.Fingerprint(b.psk), b.options.PersistentKeepaliveInterval
		end.Allowed = allow(end.Allowed, p.Subnet)
		underlays[key] = append(underlays[key], p.endpoint())
		end.Endpoint = b.choose(node, underlays[key])
		byKey[key] = end
	}
	ends := make([]netstate.Peer, 0, len(byKey))
	for _, end := range byKey {
		ends = append(ends, end)
	}
	return ends
}

// allow adds a prefix and keeps the order that netstate.Peer has.
func allow(have netstate.Allowed, more netip.Prefix) netstate.Allowed {
	n := slices.IndexFunc(have[:], func(p netip.Prefix) bool { return !p.IsValid() })
	have[n] = more
	slices.SortFunc(have[:n+1], netip.Prefix.Compare)
	return have
}

// choose is the address of a peer that a device for both families sends to, as flannel chooses it: the one
// of Mode; with auto a public one that this node's own address can reach, else the first, which is IPv4.
func (b *Backend) choose(node backend.Node, ends []netip.AddrPort) netip.AddrPort {
	for _, end := range ends {
		own, ok := node.Underlay(netstate.FamilyOf(end.Addr()))
		switch b.options.Mode {
		case ipv4, ipv6:
			if end.Addr().Is4() == (b.options.Mode == ipv4) {
				return end
			}
		case auto:
			if ok && !end.Addr().IsPrivate() && (end.Addr().Is4() || !own.Local.IsPrivate()) {
				return end
			}
		}
	}
	return ends[0]
}
