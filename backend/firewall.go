package backend

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/twill-net/twill/netstate"
)

// ServiceMark is the bit with which kube-proxy marks packets that it masquerades itself.
const ServiceMark = 0x4000

// KeepLocal says which packets from a node's own address to pods keep that address; see FirewallChains.
type KeepLocal uint8

// The choices. KeepRouted is the default.
const (
	KeepRouted KeepLocal = iota // those that leave through another device than the overlay's
	KeepAlways                  // all
	KeepNever                   // none, as with flannel
)

// ParseKeepLocal reads "routed", "always" or "never".
func ParseKeepLocal(s string) (KeepLocal, error) {
	for k := KeepRouted; k <= KeepNever; k++ {
		if s == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("keep local addresses %q: want routed, always or never", s)
}

func (k KeepLocal) String() string { return [...]string{"routed", "always", "never"}[k] }

// ForwardRules reports whether packets from and to pods are accepted where they are forwarded. It is a flag.Value.
type ForwardRules uint8

// The choices.
const (
	ForwardOff   ForwardRules = iota
	ForwardOn                 // behind the rules of others, as with flannel: network policies decide first
	ForwardFirst              // before the rules of others, whatever they say
)

func (f ForwardRules) String() string { return [...]string{"false", "true", "first"}[f] }

// IsBoolFlag lets the flag stand without a value, which means true.
func (ForwardRules) IsBoolFlag() bool { return true }

// Set reads flannel's boolean, or "first".
func (f *ForwardRules) Set(s string) error {
	on, err := strconv.ParseBool(s)
	switch {
	case s == "first":
		*f = ForwardFirst
	case err != nil:
		return errors.New("want true, false or first")
	case on:
		*f = ForwardOn
	default:
		*f = ForwardOff
	}
	return nil
}

// FirewallConfig is what FirewallChains needs to know.
type FirewallConfig struct {
	Mode      netstate.Mode
	Stacks    []FirewallStack // one per address family
	Bridge    string          // the pods'
	Masq      bool            // --ip-masq
	Random    bool            // masquerade with --random-fully
	Forward   ForwardRules    // --iptables-forward-rules
	KeepLocal KeepLocal
}

// FirewallStack is one address family's part of a FirewallConfig.
type FirewallStack struct {
	Cluster netip.Prefix       // all pods: Network or IPv6Network
	Pod     netip.Prefix       // this node's pods
	Overlay string             // the device that encapsulates; empty if there is none
	Guarded netstate.Transport // the packets between nodes that only nodes may send; zero: none
}

// FirewallChains is the firewall that a node should have: flannel's chains, with flannel's packet semantics.
//
// There is one difference. flannel's last rule masquerades whatever a node sends to a remote pod from an
// address that is not a pod's, so that the pod sees the overlay device's .0 address instead of the node (a
// hostNetwork client of a NodePort with externalTrafficPolicy Local is the case that people meet). Here the
// node's address stays wherever the way back works:
//
//   - A packet that leaves un-encapsulated (host-gw, DirectRouting) is answered the way it came: the peer sends
//     its reply to the node's underlay address over the same underlay. It keeps its source.
//   - A packet that enters the overlay is answered to the same underlay address, but un-encapsulated, because
//     that address is not in the overlay. The reply comes in through another device than the packet left by:
//     strict rp_filter drops it, and so does an underlay that filters pod addresses. It is masqueraded as
//     flannel does. A process that chose no source never sees this: the route gives it the .0 address, which
//     is in Pod and returned by the second rule. What is left are addresses chosen earlier: by DNAT after
//     the socket had its source (NodePort, ClusterIP), or by a process that bound an underlay address. For
//     those the rule cannot tell a wish from an accident, and an answered packet is the better guess;
//     KeepAlways is for hosts whose rp_filter and underlay let such replies in.
//   - A loopback source (a NodePort on 127.0.0.1) has no way back at all and is never kept.
//   - A process that binds a local address which peers cannot reach (a container bridge's) keeps it towards
//     un-encapsulated pods, as it does towards every other host of the underlay. KeepNever masks it.
func FirewallChains(cfg FirewallConfig) []netstate.Object {
	var objects []netstate.Object
	for _, s := range cfg.Stacks {
		base := netstate.Chain{Mode: cfg.Mode, Family: netstate.FamilyOf(s.Cluster.Addr())}
		if cfg.Masq {
			base.Role = netstate.Postrouting
			objects = append(objects, withRules(base, masqueradeRules(cfg, s)))
		}
		if cfg.Forward != ForwardOff {
			base.Role = netstate.Forward
			if cfg.Forward == ForwardFirst {
				base.Place = netstate.First
			}
			objects = append(objects, withRules(base, forwardRules(s)))
		}
		if s.Guarded.Protocol != 0 {
			objects = append(objects, guards(cfg, s)...)
		}
	}
	return objects
}

// withRules is c with rules, which are fewer than MaxRules by construction.
func withRules(c netstate.Chain, rules []netstate.Rule) netstate.Chain {
	copy(c.Rules[:], rules)
	return c
}

func masqueradeRules(cfg FirewallConfig, s FirewallStack) []netstate.Rule {
	masquerade := netstate.Masquerade
	if cfg.Random {
		masquerade = netstate.MasqueradeRandom
	}
	rules := []netstate.Rule{
		{Mark: ServiceMark, Verdict: netstate.Return},
		{Src: s.Pod, Dst: s.Cluster, Verdict: netstate.Return},
		{Src: s.Cluster, Dst: s.Pod, Verdict: netstate.Return},
		{NotSrc: s.Cluster, Dst: s.Pod, Verdict: netstate.Return}, // LocalTraffic services see their clients
		{Src: s.Cluster, NotDst: multicast(s.Cluster), Verdict: masquerade},
	}
	if cfg.KeepLocal != KeepNever {
		keep := netstate.Rule{Local: true, NotSrc: loopback(s.Cluster), Dst: s.Cluster, Verdict: netstate.Return}
		if cfg.KeepLocal == KeepRouted {
			keep.NotOut = s.Overlay
		}
		rules = append(rules, keep)
	}
	return append(rules, netstate.Rule{NotSrc: s.Cluster, Dst: s.Cluster, Verdict: masquerade})
}

func forwardRules(s FirewallStack) []netstate.Rule {
	return []netstate.Rule{
		{Src: s.Cluster, Verdict: netstate.Accept},
		{Dst: s.Cluster, Verdict: netstate.Accept},
	}
}

// guards keep pods from sending what only nodes send each other: whoever wraps a packet as a peer does
// speaks for any pod.
// No pod has business with such packets at an address of this node, by whatever way they come. Those that it sends to
// addresses outside of the network may be for another node, and nobody could tell there whose they were: they are
// masqueraded. Between pods they pass: a pod can be a node of a network of its own.
func guards(cfg FirewallConfig, s FirewallStack) []netstate.Object {
	base := netstate.Chain{Mode: cfg.Mode, Family: netstate.FamilyOf(s.Cluster.Addr())}
	input, forward := base, base
	input.Role, forward.Role = netstate.GuardInput, netstate.GuardForward
	return []netstate.Object{
		withRules(input, []netstate.Rule{
			{In: cfg.Bridge, Packet: s.Guarded, Verdict: netstate.Drop},
			{Src: s.Cluster, Packet: s.Guarded, Verdict: netstate.Drop},
			{Dst: s.Cluster, Packet: s.Guarded, Verdict: netstate.Drop},
		}),
		withRules(forward, []netstate.Rule{
			{In: cfg.Bridge, NotDst: s.Cluster, Packet: s.Guarded, Verdict: netstate.Drop},
			{Src: s.Cluster, NotDst: s.Cluster, Packet: s.Guarded, Verdict: netstate.Drop},
		}),
	}
}

func multicast(family netip.Prefix) netip.Prefix {
	if family.Addr().Is4() {
		return netip.MustParsePrefix("224.0.0.0/4")
	}
	return netip.MustParsePrefix("ff00::/8")
}

func loopback(family netip.Prefix) netip.Prefix {
	if family.Addr().Is4() {
		return netip.MustParsePrefix("127.0.0.0/8")
	}
	return netip.MustParsePrefix("::1/128")
}
