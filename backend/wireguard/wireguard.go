// Package wireguard is the backend that encrypts pods' packets: flannel's device names, keys and annotations, so that
// nodes of both understand each other. Where the kernel has WireGuard, the reconciler makes its devices,
// peers and routes.
// Where it has not, the reconciler makes TUN devices, and Run is the implementation of
// golang.zx2c4.com/wireguard on these.
package wireguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/secret"
	"github.com/twill-net/twill/subnet"
)

// The devices' names, as flannel has them; in other modes than separate there is only the first.
const device4, device6 = "flannel-wg", "flannel-wg-v6"

// overhead is what WireGuard adds to a packet, in bytes, with an outer IPv6 header; flannel takes it for IPv4 too.
const overhead = 80

// Options are net-conf.json's Backend keys of flannel's wireguard.
type Options struct {
	ListenPort                  int    // UDP, of the IPv4 device; 51820
	ListenPortV6                int    // UDP, of the IPv6 device; 51821
	PSK                         string // base64; shared by all nodes
	PersistentKeepaliveInterval int    // seconds; 0: none
	Mode                        string // "separate": a device for each address family; "auto", "ipv4", "ipv6": one for both
	MTU                         int    // of the underlay, bytes; 0: the interface's
}

// Backend is wireguard. It is the same for the whole run of an agent: Prepare reads the private key.
type Backend struct {
	networks []netip.Prefix
	options  Options
	psk      wgtypes.Key // zero: none

	mu  sync.Mutex
	key wgtypes.Key // private; zero before Prepare
}

// New makes the backend of net-conf.json's {"Type": "wireguard", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	b := &Backend{networks: networks, options: Options{ListenPort: 51820, ListenPortV6: 51821, Mode: separate}}
	warnings, err := backend.ParseOptions(options, &b.options)
	if err == nil {
		err = b.options.validate(networks)
	}
	if err == nil && b.options.PSK != "" {
		if b.psk, err = wgtypes.ParseKey(b.options.PSK); err != nil {
			err = errors.New("net-conf Backend: PSK is not a key: want 32 bytes in base64, as wg genpsk makes it")
		}
	}
	return b, warnings, err
}

// Strict implements backend.Strict: what is not encrypted is no pod's.
func (*Backend) Strict() bool { return true }

func (o Options) validate(networks []netip.Prefix) error {
	for name, port := range map[string]int{"ListenPort": o.ListenPort, "ListenPortV6": o.ListenPortV6} {
		if port < 1 || port > 65535 {
			return fmt.Errorf("net-conf Backend: %s %d: want 1 to 65535", name, port)
		}
	}
	dual := slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Addr().Is4() != networks[0].Addr().Is4() })
	switch {
	case o.ListenPort == o.ListenPortV6 && dual && o.Mode == separate:
		return fmt.Errorf("net-conf Backend: ListenPort and ListenPortV6 are both %d: want two ports", o.ListenPort)
	case o.PersistentKeepaliveInterval < 0 || o.PersistentKeepaliveInterval > 65535:
		return fmt.Errorf(
			"net-conf Backend: PersistentKeepaliveInterval %d: want 0 to 65535 seconds",
			o.PersistentKeepaliveInterval,
		)
	case !slices.Contains([]string{separate, auto, ipv4, ipv6}, o.Mode):
		return fmt.Errorf("net-conf Backend: Mode %q: want separate, auto, ipv4 or ipv6", o.Mode)
	case o.MTU != 0 && (o.MTU < 576+overhead || o.MTU > 65535):
		return fmt.Errorf("net-conf Backend: MTU %d: want %d to 65535, or 0 for the interface's", o.MTU, 576+overhead)
	}
	return nil
}

// The modes, as flannel names them.
const separate, auto, ipv4, ipv6 = "separate", "auto", "ipv4", "ipv6"

func (b *Backend) deviceOf(f netstate.Family) string {
	if f == netstate.IPv4 || b.options.Mode != separate {
		return device4
	}
	return device6
}

func (b *Backend) port(f netstate.Family) int {
	if f == netstate.IPv4 || b.options.Mode != separate {
		return b.options.ListenPort
	}
	return b.options.ListenPortV6
}

func (b *Backend) mtu(u backend.Underlay) int {
	if b.options.MTU != 0 {
		return b.options.MTU - overhead
	}
	return u.MTU - overhead
}

// deviceMTU is one device's: a device for both families has the smaller one.
func (b *Backend) deviceMTU(node backend.Node, f netstate.Family) int {
	if u, ok := node.Underlay(f); ok && b.options.Mode == separate {
		return b.mtu(u)
	}
	return b.MTU(node)
}

// MTU is the smallest of the families' devices.
func (b *Backend) MTU(node backend.Node) int { return backend.InnerMTU(node.Underlays, b.mtu) }

// Desired is this node's devices, their peers, and a route into them for every peer.
func (b *Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	state := netstate.State{}
	for _, stack := range snap.Local.Stacks {
		if _, ok := node.Underlay(stack.Family()); ok {
			dev := b.deviceOf(stack.Family())
			b.addDevice(state, node, dev, stack)
			state.Add(backend.TunnelAddr(dev, stack.Subnet), backend.TunnelSysctl(dev, stack.Family()))
		}
	}
	peers, skips := b.peers(node, snap)
	for _, p := range peers {
		if u, ok := node.Underlay(p.Family()); ok {
			mtu := u.RouteMTU(p.Peer, b.deviceMTU(node, p.Family()), func(u backend.Underlay) int { return u.MTU - overhead })
			state.Add(backend.TunnelRoute(b.deviceOf(p.Family()), p.Peer, mtu))
		}
	}
	if node.WireGuard {
		for _, end := range b.ends(node, peers) {
			state.Add(end)
		}
	}
	return state, skips
}

// addDevice adds one device: the kernel's, or a TUN device for Run.
func (b *Backend) addDevice(state netstate.State, node backend.Node, dev string, stack subnet.Stack) {
	mtu := b.deviceMTU(node, stack.Family())
	if !node.WireGuard {
		state.Add(netstate.Tun{Name: dev, MTU: mtu, Up: true, Marked: true})
		return
	}
	state.Add(netstate.WireGuard{Name: dev, MTU: mtu, Up: true, Marked: true},
		netstate.Listener{Dev: dev, Port: b.port(stack.Family()), Public: b.public(stack)})
}

// public is this node's public key: that of the private key or, where that was not read, what the node published.
func (b *Backend) public(stack subnet.Stack) netstate.PublicKey {
	if key := b.private(); key != (wgtypes.Key{}) {
		return netstate.PublicKey(key.PublicKey())
	}
	key, _, _ := parseData(stack.Data) // none is the zero key, which the kernel shows for none
	return netstate.PublicKey(key)
}

// Private implements the kernel's Secrets.
func (b *Backend) Private(public netstate.PublicKey) (key [32]byte, ok bool) {
	k := b.private()
	return k, k != (wgtypes.Key{}) && netstate.PublicKey(k.PublicKey()) == public
}

// Shared implements the kernel's Secrets.
func (b *Backend) Shared(fingerprint string) (key [32]byte, ok bool) {
	return b.psk, secret.Fingerprint(b.psk) == fingerprint
}
