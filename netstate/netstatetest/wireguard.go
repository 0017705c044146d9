package netstatetest

import (
	"crypto/ecdh"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/secret"
)

// Secrets has one private and one shared key; every harness of RunWireGuard knows them.
type Secrets struct{}

// The keys, as WireGuard clamps private ones (RFC 7748).
var (
	private = [32]byte{0: 8, 1: 1, 31: 64}
	shared  = [32]byte{0: 9, 31: 9}
)

// Private returns the private key of node 1.
func (Secrets) Private(public netstate.PublicKey) (key [32]byte, ok bool) {
	return private, public == publicOf(private)
}

// Shared returns the shared key of the suite.
func (Secrets) Shared(fingerprint string) (key [32]byte, ok bool) {
	return shared, fingerprint == secret.Fingerprint(shared)
}

func publicOf(key [32]byte) netstate.PublicKey {
	k, err := ecdh.X25519().NewPrivateKey(key[:])
	if err != nil {
		panic(err) // the key is a constant
	}
	return netstate.PublicKey(k.PublicKey().Bytes())
}

// RunWireGuard is the suite of the kernel's WireGuard, which not every kernel has. Command has to know "wg set".
func RunWireGuard(t *testing.T, harness func(t *testing.T) Harness) {
	runCases(t, harness, wireguardDevice().cases())
	runCases(t, harness, []testCase{
		{"a prefix moves to another peer", movesPrefix},
		{"made anew by someone", recreated},
	})
}

func wireguardPeer(n int) netstate.Peer {
	return netstate.Peer{Dev: "flannel-wg", Public: publicOf([32]byte{0: byte(8 * n), 31: 64}),
		Endpoint: netip.AddrPortFrom(v4.underlay(n), 51820),
		Allowed:  netstate.Allowed{v4.prefix(n)}, Shared: secret.Fingerprint(shared), Keepalive: 25}
}

func wireguardDevice() device {
	p := wireguardPeer(2)
	listener := netstate.Listener{Dev: "flannel-wg", Port: 51820, Public: publicOf(private)}
	key := p.Public.String()
	peer, listen := p.String(), listener.String()
	return device{
		name: "flannel-wg",
		state: netstate.NewState(
			netstate.WireGuard{Name: "flannel-wg", MTU: 1420, Up: true, Marked: true}, listener, p, wireguardPeer(3),
			netstate.Addr{Dev: "flannel-wg", Prefix: netip.MustParsePrefix("10.244.1.0/32")},
			netstate.Sysctl{Name: "net/ipv4/conf/flannel-wg/rp_filter", Value: "2"},
			v4.through(2, "flannel-wg")),
		line:   "link flannel-wg wireguard mtu 1420 up",
		route:  "route 10.244.2.0/24 dev flannel-wg",
		shrunk: netstate.WireGuard{Name: "flannel-wg", MTU: 1400, Up: true, Marked: true},
		drifts: map[string]drift{
			"peer deleted": {commands: "wg set DEV peer " + key + " remove", plan: "+ " + peer},
			"peer added": {commands: "wg set DEV peer " + publicOf([32]byte{0: 80, 31: 64}).String() +
				" allowed-ips 10.244.9.0/24", plan: "- peer " + publicOf([32]byte{0: 80, 31: 64}).String() +
				" dev DEV allowed 10.244.9.0/24"},
			"endpoint": {commands: "wg set DEV peer " + key + " endpoint 192.0.2.9:51820",
				plan: was(peer, "192.0.2.2:", "192.0.2.9:")},
			"keepalive": {commands: "wg set DEV peer " + key + " persistent-keepalive 7",
				plan: was(peer, "keepalive 25", "keepalive 7")},
			"allowed another": {commands: "wg set DEV peer " + key + " allowed-ips 10.244.2.0/24,10.244.9.0/24",
				plan: was(peer, "allowed 10.244.2.0/24", "allowed 10.244.2.0/24 allowed 10.244.9.0/24")},
			"allowed more": {commands: "wg set DEV peer " + key +
				" allowed-ips 10.244.2.0/24,10.244.20.0/24,10.244.21.0/24,10.244.22.0/24,10.244.23.0/24,10.244.24.0/24," +
				"10.244.25.0/24,10.244.26.0/24,10.244.27.0/24",
				plan: "~ " + peer + " (was " + strings.Replace(peer, "allowed 10.244.2.0/24", "allowed 10.244.2.0/24 "+
					"allowed 10.244.20.0/24 allowed 10.244.21.0/24 allowed 10.244.22.0/24 allowed 10.244.23.0/24 "+
					"allowed 10.244.24.0/24 allowed 10.244.25.0/24 allowed 10.244.26.0/24", 1) + " allowed [10.244.27.0/24])"},
			"port":   {commands: "wg set DEV listen-port 51830", plan: was(listen, "port 51820", "port 51830")},
			"fwmark": {commands: "wg set DEV fwmark 0x7", plan: "~ " + listen + " (was " + listen + " fwmark 0x7)"},
		},
	}
}

// movesPrefix: a node that came back with another key has the old one's prefix.
func movesPrefix(h *host) {
	d := wireguardDevice()
	d.up(h)
	anew := wireguardPeer(2)
	anew.Public = publicOf([32]byte{0: 160, 31: 64})
	want := merge(d.state, netstate.NewState(anew))
	delete(want, wireguardPeer(2).Key())
	h.apply(want)
	h.apply(d.state)
}

// recreated: someone's device of the right type is taken over, with the key and the peers.
func recreated(h *host) {
	d := wireguardDevice()
	d.up(h)
	h.run("ip link del flannel-wg", "ip link add flannel-wg type wireguard")
	h.settle(d.state)
}
