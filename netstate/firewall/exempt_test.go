package firewall

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// TestExemptPackets sends packets to networks that are not masqueraded, and from and to a second network of pods.
func TestExemptPackets(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "ip", "nsenter", "iptables-nft", "ip6tables-nft")
		pod, outside := newSpace(t), newSpace(t)
		links(t, pod, outside)
		for _, w := range worlds {
			w.wire(t, pod, outside)
		}
		host := func(a string) netip.Prefix {
			addr := netip.MustParseAddr(a)
			return netip.PrefixFrom(addr, addr.BitLen())
		}
		all := func(name string, s shot, seen string) packet { return packet{name, s, seen, seen, seen} }

		exempt := masquerading(g.mode)
		for _, w := range worlds {
			exempt.Exempt = append(exempt.Exempt, host(w.outside))
		}
		settle(t, f, netstate.NewState(backend.FirewallChains(exempt)...))
		for _, w := range worlds {
			expect(t, []packet{
				all("exempt: pod to outside", shot{from: pod, to: outside, dst: w.outside}, w.pod),
				all("exempt: outside to pod", shot{from: outside, to: pod, src: w.outside, dst: w.pod}, w.outside),
				all("exempt: stranger to routed pod", shot{from: pod, to: outside, src: w.stranger, dst: w.routed}, w.node),
			}, backend.KeepRouted)
		}

		exempt.Exempt = []netip.Prefix{netip.MustParsePrefix("::/0")} // one family
		settle(t, f, netstate.NewState(backend.FirewallChains(exempt)...))
		for i, seen := range []string{worlds[0].node, worlds[1].pod} {
			w := worlds[i]
			expect(t, []packet{all("IPv6 exempt: pod to outside", shot{from: pod, to: outside, dst: w.outside}, seen)}, backend.KeepRouted)
		}

		second := masquerading(g.mode) // this node's pods are of the second network, the peer's of the first
		for i, w := range worlds {
			second.Clusters = append(second.Clusters, netip.PrefixFrom(netip.MustParseAddr(w.stranger), 8*w.family.Bits()/16).Masked())
			outside.sh(t, "ip route add "+w.stranger+" via "+w.node)
			second.Stacks[i].Pod = netip.PrefixFrom(netip.MustParseAddr(w.stranger), w.link).Masked()
		}
		settle(t, f, netstate.NewState(backend.FirewallChains(second)...))
		for _, w := range worlds {
			expect(t, []packet{
				all("second network: pod to outside", shot{from: pod, to: outside, src: w.stranger, dst: w.outside}, w.node),
				all("second network: pod to routed pod", shot{from: pod, to: outside, src: w.stranger, dst: w.routed}, w.stranger),
				all("second network: pod to encapsulated pod", shot{from: pod, to: outside, src: w.stranger, dst: w.encapsulated}, w.stranger),
				all("second network: outside to pod", shot{from: outside, to: pod, src: w.outside, dst: w.stranger}, w.outside),
				all("second network: remote pod to pod", shot{from: outside, to: pod, src: w.routed, dst: w.stranger}, w.routed),
			}, backend.KeepRouted)
		}
	})
}

// TestManyExempt: the kernel gives back as many rules as ip-masq-agent's limit asks for.
func TestManyExempt(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		cfg := masquerading(g.mode)
		cfg.Exempt = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("0.0.0.0/0")}
		for i := range 63 {
			cfg.Exempt = append(cfg.Exempt, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i), 0, 0}), 16))
		}
		settle(t, f, netstate.NewState(backend.FirewallChains(cfg)...))
		cfg.Exempt = cfg.Exempt[:1]
		settle(t, f, netstate.NewState(backend.FirewallChains(cfg)...))
		settle(t, f, netstate.State{})
		empty(t)
	})
}

// masquerading is the config of the node between the worlds.
func masquerading(mode netstate.Mode) backend.FirewallConfig {
	cfg := backend.FirewallConfig{Mode: mode, Masq: true, Random: true, Forward: backend.ForwardOn}
	for _, w := range worlds {
		cfg.Stacks = append(cfg.Stacks, backend.FirewallStack{
			Cluster: netip.MustParsePrefix(w.cluster), Pod: netip.MustParsePrefix(w.podNet), Overlays: []string{"flannel.1"}})
	}
	return cfg
}
