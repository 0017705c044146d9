// Package wireguard reads and writes what stands on the kernel's WireGuard devices: their keys, ports and peers. The
// devices themselves, their addresses and routes are netstate/kernel's, of which this is a Part.
package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/netstate/secret"
)

// Secrets holds the keys that plans do not show.
type Secrets interface {
	// Private returns the private key of a public one.
	Private(netstate.PublicKey) (key [32]byte, ok bool)
	// Shared returns the pre-shared key of a fingerprint.
	Shared(fingerprint string) (key [32]byte, ok bool)
}

// WireGuard is the kernel's, in the network namespace of the thread that called Open. Several goroutines may use it.
type WireGuard struct {
	client  *wgctrl.Client
	secrets Secrets
}

// ErrMissing is the error of a kernel without WireGuard.
var ErrMissing = errors.New("this kernel has no WireGuard")

// Open connects to the kernel, which loads the module if it is there. Without one it returns ErrMissing. To observe
// takes no secrets.
func Open(secrets Secrets) (*WireGuard, error) {
	if err := probe(); err != nil {
		return nil, err
	}
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("open a generic netlink socket: %w", err)
	}
	return &WireGuard{client, secrets}, nil
}

// Has reports whether the kernel has WireGuard. It loads the module if it is there.
func Has() bool { return probe() == nil }

// probe asks for the generic netlink family: wgctrl's client does not report whether the kernel has one.
func probe() error {
	_, err := netlink.GenlFamilyGet(unix.WG_GENL_NAME)
	if errors.Is(err, unix.ENOENT) {
		return ErrMissing
	}
	if err != nil {
		return fmt.Errorf("ask for WireGuard's generic netlink family: %w", err)
	}
	return nil
}

// Close frees the socket.
func (w *WireGuard) Close() error { return w.client.Close() }

// Writes reports whether objects of a kind are WireGuard's.
func (w *WireGuard) Writes(k netstate.Kind) bool {
	return k == netstate.KindListener || k == netstate.KindPeer
}

// rejectAfter is how long a session lasts without a new handshake (REJECT_AFTER_TIME in WireGuard's paper).
const rejectAfter = 180 * time.Second

// Observe returns the listener and the peers of the devices; one that is gone meanwhile has none.
//
// A peer behind a NAT has another endpoint than the one it published: WireGuard follows the packets that it sends. With
// a keepalive, an endpoint that a session uses therefore counts as the wanted one. Without, it is what the peer
// published, and a change of that is written at once.
func (w *WireGuard) Observe(devs map[string][]string, want netstate.State) (netstate.State, error) {
	state := netstate.State{}
	for _, dev := range devs["wireguard"] {
		d, err := w.client.Device(dev)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("read the WireGuard device %s: %w", dev, err)
		}
		state.Add(decodeListener(dev, d))
		for _, p := range d.Peers {
			peer := decodePeer(dev, p)
			if wanted, ok := want[peer.Key()].(netstate.Peer); ok && wanted.Keepalive > 0 &&
				time.Since(p.LastHandshakeTime) < rejectAfter {
				peer.Endpoint = wanted.Endpoint
			}
			state.Add(peer)
		}
	}
	return state, nil
}

func decodeListener(dev string, d *wgtypes.Device) netstate.Listener {
	l := netstate.Listener{Dev: dev, Port: d.ListenPort, Public: netstate.PublicKey(d.PublicKey)}
	if d.FirewallMark != 0 {
		l.Extra = fmt.Sprintf("fwmark %#x", d.FirewallMark)
	}
	return l
}

func decodePeer(dev string, p wgtypes.Peer) netstate.Peer {
	o := netstate.Peer{Dev: dev, Public: netstate.PublicKey(p.PublicKey), Shared: secret.Fingerprint(p.PresharedKey),
		Keepalive: int(p.PersistentKeepaliveInterval / time.Second)}
	if p.Endpoint != nil {
		o.Endpoint = netip.AddrPortFrom(p.Endpoint.AddrPort().Addr().Unmap(), uint16(p.Endpoint.Port))
	}
	var allowed []netip.Prefix
	for _, n := range p.AllowedIPs {
		allowed = append(allowed, rtnl.Prefix(&n))
	}
	slices.SortFunc(allowed, netip.Prefix.Compare)
	if n := copy(o.Allowed[:], allowed); n < len(allowed) {
		o.Extra = fmt.Sprintf("allowed %v", allowed[n:])
	}
	return o
}

// Apply carries out one change of a Listener or Peer. Deleting what is not there is success.
func (w *WireGuard) Apply(c netstate.Change) error {
	switch want := c.Want.(type) {
	case nil:
		return w.remove(c.Was)
	case netstate.Listener:
		return w.listen(want)
	case netstate.Peer:
		return w.put(want, c.Was)
	}
	return fmt.Errorf("a %s is not an object of WireGuard", c.Want.Key().Kind)
}

func (w *WireGuard) remove(o netstate.Object) error {
	p, ok := o.(netstate.Peer)
	if !ok {
		return fmt.Errorf("a %s is not an object of WireGuard that can be deleted", o.Key().Kind)
	}
	err := w.configurePeer(p.Dev, wgtypes.PeerConfig{PublicKey: wgtypes.Key(p.Public), Remove: true, UpdateOnly: true})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return nil // the device is gone, or another's
	}
	return err
}

func (w *WireGuard) configurePeer(dev string, p wgtypes.PeerConfig) error {
	return w.configure(dev, wgtypes.Config{Peers: []wgtypes.PeerConfig{p}})
}

func (w *WireGuard) configure(dev string, c wgtypes.Config) error {
	if err := w.client.ConfigureDevice(dev, c); err != nil {
		return fmt.Errorf("configure the WireGuard device %s: %w", dev, err)
	}
	return nil
}

// listen gives the device its key and port. With another key the sessions go on receiving, so nothing is lost while the
// peers learn the key.
func (w *WireGuard) listen(want netstate.Listener) error {
	private, ok := w.secrets.Private(want.Public)
	if !ok {
		return fmt.Errorf("the private key of %s is not known here", want.Public)
	}
	key, port, mark := wgtypes.Key(private), want.Port, 0
	return w.configure(want.Dev, wgtypes.Config{PrivateKey: &key, ListenPort: &port, FirewallMark: &mark})
}

// firstKeepalive is the interval of a new peer for a moment, so that a session with it begins at once: the kernel
// sends a keepalive when the interval changes from none. A peer that had a session with this node before would
// otherwise use its old keys, which are unknown here, for up to 15 s.
const firstKeepalive = time.Second

// put adds a peer, or changes it in place: its session stays.
func (w *WireGuard) put(want netstate.Peer, was netstate.Object) error {
	var shared wgtypes.Key
	if want.Shared != "" {
		key, ok := w.secrets.Shared(want.Shared)
		if !ok {
			return fmt.Errorf("the pre-shared key %s is not known here", want.Shared)
		}
		shared = key
	}
	keepalive, first := time.Duration(want.Keepalive)*time.Second, firstKeepalive
	c := wgtypes.PeerConfig{PublicKey: wgtypes.Key(want.Public), PresharedKey: &shared,
		Endpoint:                    net.UDPAddrFromAddrPort(want.Endpoint),
		PersistentKeepaliveInterval: &keepalive, ReplaceAllowedIPs: true}
	for _, p := range want.Allowed {
		if p.IsValid() {
			c.AllowedIPs = append(c.AllowedIPs, *rtnl.IPNet(p))
		}
	}
	if was == nil {
		c.PersistentKeepaliveInterval = &first
	}
	err := w.configurePeer(want.Dev, c)
	if err == nil && was == nil && keepalive != first {
		err = w.configurePeer(want.Dev, wgtypes.PeerConfig{PublicKey: c.PublicKey, UpdateOnly: true,
			PersistentKeepaliveInterval: &keepalive})
	}
	return err
}
