package backend

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
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
	Bridge    string          // the pods'; empty: unknown
	Masq      bool            // --ip-masq
	Random    bool            // masquerade with --random-fully
	Forward   ForwardRules    // --iptables-forward-rules
	KeepLocal KeepLocal
	Clusters  []netip.Prefix // --cluster-cidr: pods' networks beside the Stacks' Clusters, of both families
	Exempt    []netip.Prefix // --no-masquerade-cidr: pods keep their address towards these, of both families
}

// FirewallStack is one address family's part of a FirewallConfig.
type FirewallStack struct {
	Cluster  netip.Prefix         // all pods: Network or IPv6Network
	Pod      netip.Prefix         // this node's pods
	Earlier  []netip.Prefix       // subnets that the node had before, of which it still has pods
	Overlays []string             // the devices that encapsulate
	Guarded  []netstate.Transport // the packets between nodes that only nodes may send
	Strict   bool                 // see the interface Strict
	Plain    bool                 // packets to some peers leave as they are, through the underlay's device
	// Inside are networks that the node is on and that lie in Cluster, though no pod is there: a LAN, say.
	Inside []netip.Prefix
	// Outside are the devices by which packets come that are no pods'.
	Outside []string
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
//
// Check must have found no error.
func FirewallChains(cfg FirewallConfig) []netstate.Object {
	var objects []netstate.Object
	for _, s := range cfg.Stacks {
		base := netstate.Chain{Mode: cfg.Mode, Family: netstate.FamilyOf(s.Cluster.Addr())}
		if cfg.Masq {
			base.Role = netstate.Postrouting
			objects = append(objects, withRules(base, s.fit(cfg, masqueradeRules)))
		}
		if cfg.Forward != ForwardOff {
			base.Role = netstate.Forward
			if cfg.Forward == ForwardFirst {
				base.Place = netstate.First
			}
			objects = append(objects, withRules(base, forwardRules(cfg, s)))
		}
		if len(s.Guarded) > 0 || s.Strict {
			objects = append(objects, guards(cfg, s)...)
		}
	}
	return objects
}

// withRules is c with rules, which are not more than MaxRules: see FirewallConfig.Check.
func withRules(c netstate.Chain, rules []netstate.Rule) netstate.Chain {
	copy(c.Rules[:], rules)
	return c
}

func masqueradeRules(cfg FirewallConfig, s FirewallStack) []netstate.Rule {
	masquerade := netstate.Masquerade
	if cfg.Random {
		masquerade = netstate.MasqueradeRandom
	}
	clusters := cfg.clusters(s)
	rules := []netstate.Rule{{Mark: ServiceMark, Verdict: netstate.Return}}
	var exempt []netstate.Rule
	for _, c := range clusters {
		for _, e := range cfg.exempt(s) {
			exempt = append(exempt, exemption(c, e))
		}
	}
	if len(s.Inside) > 0 && (s.Plain || len(s.Overlays) == 0) {
		rules, exempt = append(rules, exempt...), nil
		for _, own := range s.pods() {
			for _, p := range s.Inside {
				rules = append(rules, netstate.Rule{Src: own, Dst: p, Verdict: masquerade})
			}
		}
	}
	for _, own := range s.pods() {
		rules = append(rules, keepPods(s, own, clusters)...)
	}
	rules = append(rules, exempt...)
	for _, p := range s.Inside { // what the node sends from there is no pod's, but through the overlay nobody could answer
		rules = append(rules, s.plainly(netstate.Rule{Local: true, Src: p, Verdict: netstate.Return}, masquerade)...)
	}
	for _, c := range clusters {
		rules = append(rules, netstate.Rule{Src: c, NotDst: multicast(c), Verdict: masquerade})
	}
	if cfg.KeepLocal != KeepNever {
		for _, c := range clusters {
			keep := netstate.Rule{Local: true, NotSrc: loopback(c), Dst: c, Verdict: netstate.Return}
			if cfg.KeepLocal == KeepRouted {
				rules = append(rules, s.plainly(keep, masquerade)...)
				continue
			}
			rules = append(rules, keep)
		}
	}
	for _, c := range clusters { // of what comes from any of them, only multicast packets are left
		rules = append(rules, netstate.Rule{NotSrc: c, Dst: c, Verdict: masquerade})
	}
	return rules
}

// keepPods keeps the addresses of what this node's pods of one subnet send to pods, and of what is sent to them.
func keepPods(s FirewallStack, own netip.Prefix, clusters []netip.Prefix) (rules []netstate.Rule) {
	for _, c := range clusters {
		r := netstate.Rule{Src: own, Dst: c, Verdict: netstate.Return}
		if c == s.Cluster && len(s.Inside) > 0 && !s.Plain {
			rules = append(rules, s.through(r)...) // what else is in the network is no pod, and knows no way back to one
			continue
		}
		rules = append(rules, r)
	}
	return append(rules,
		netstate.Rule{Src: s.Cluster, Dst: own, Verdict: netstate.Return},
		netstate.Rule{NotSrc: s.Cluster, Dst: own, Verdict: netstate.Return}) // LocalTraffic services see their clients
}

// fit returns the rules of a chain. Where there is no room for those about subnets of before, they are left out.
func (s FirewallStack) fit(cfg FirewallConfig, rules func(FirewallConfig, FirewallStack) []netstate.Rule) []netstate.Rule {
	all := rules(cfg, s)
	if len(all) > netstate.MaxRules {
		s.Earlier = nil
		all = rules(cfg, s)
	}
	return all
}

// pods returns the subnets of this node's pods, the lease's first.
func (s FirewallStack) pods() []netip.Prefix { return append([]netip.Prefix{s.Pod}, s.Earlier...) }

// through returns a rule for packets that leave by an overlay's device; without one, for all.
func (s FirewallStack) through(r netstate.Rule) []netstate.Rule {
	if len(s.Overlays) == 0 {
		return []netstate.Rule{r}
	}
	var rules []netstate.Rule
	for _, dev := range s.Overlays {
		r.Out = dev
		rules = append(rules, r)
	}
	return rules
}

// plainly returns a rule for packets that leave by no overlay's device. While there are several, otherwise is the verdict for
// those of all but the first.
func (s FirewallStack) plainly(r netstate.Rule, otherwise netstate.Verdict) []netstate.Rule {
	if len(s.Overlays) == 0 {
		return []netstate.Rule{r}
	}
	through := FirewallStack{Overlays: s.Overlays[1:]}
	var rules []netstate.Rule
	if len(through.Overlays) > 0 {
		rules = through.through(r)
	}
	for i := range rules {
		rules[i].Verdict = otherwise
	}
	r.NotOut = s.Overlays[0]
	return append(rules, r)
}

// exemption keeps the source of what pods of a cluster's network send to a network.
func exemption(cluster, to netip.Prefix) netstate.Rule {
	r := netstate.Rule{Src: cluster, Dst: to, Verdict: netstate.Return}
	if to.Bits() == 0 { // iptables does not print a condition that every packet meets
		r.Dst = netip.Prefix{}
	}
	return r
}

// clusters returns the networks that have pods in the family of s.
func (cfg FirewallConfig) clusters(s FirewallStack) []netip.Prefix {
	return ofFamily(netstate.FamilyOf(s.Cluster.Addr()), append([]netip.Prefix{s.Cluster}, cfg.Clusters...))
}

// exempt returns the networks of the family of s that pods reach with their own address.
func (cfg FirewallConfig) exempt(s FirewallStack) []netip.Prefix {
	return ofFamily(netstate.FamilyOf(s.Cluster.Addr()), cfg.Exempt)
}

// ofFamily returns the prefixes of one family, each once.
func ofFamily(f netstate.Family, prefixes []netip.Prefix) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		if netstate.FamilyOf(p.Addr()) == f && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// Check returns an error if a chain would have more rules than it can hold, because of too many Clusters and Exempt.
func (cfg FirewallConfig) Check(pools []subnet.Pool) error {
	cfg.KeepLocal = KeepAlways // it needs most rules
	for _, p := range pools {
		s := FirewallStack{Cluster: p.Network, Inside: make([]netip.Prefix, maxInside), Plain: true,
			Guarded: make([]netstate.Transport, 1), Overlays: []string{"flannel.1"}}
		n := max(len(masqueradeRules(cfg, s)), len(guardForward(cfg, s)))
		s.Plain, s.Strict = false, true
		if n = max(n, len(guardForward(cfg, s))); n > netstate.MaxRules {
			return fmt.Errorf("%d networks that are not masqueraded and %d networks of pods need %d %s rules: "+
				"want at most %d", len(cfg.exempt(s)), len(cfg.clusters(s)), n, p.Family(), netstate.MaxRules)
		}
	}
	return nil
}

func forwardRules(cfg FirewallConfig, s FirewallStack) []netstate.Rule {
	var rules []netstate.Rule
	for _, c := range cfg.clusters(s) {
		rules = append(rules, netstate.Rule{Src: c, Verdict: netstate.Accept}, netstate.Rule{Dst: c, Verdict: netstate.Accept})
	}
	return rules
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
