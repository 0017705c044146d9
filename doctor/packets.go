package doctor

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// flow is a packet on its way through one hook, and what it means when it ends there.
type flow struct {
	hook string
	Packet
	what string
	id   func(Decision) string
}

// mostPeers is how many peers' packets are tried against the rules: a rule that stops one peer alone is rare, and each
// try costs.
const mostPeers = 50

// checkFirewall tries the packets of pods, and the VXLAN's own, against every rule of this machine.
func checkFirewall(f Facts) []Finding {
	seen := map[string]bool{}
	var all []Finding
	for _, w := range flows(f) {
		d := Decide(f.Chains, w.hook, w.Packet)
		id := w.id(d)
		if id == "" || seen[id+d.Chain+d.By] {
			continue
		}
		seen[id+d.Chain+d.By] = true
		all = append(all, find(id, d.Chain, w.what+" is accepted", d.Verdict+" by: "+d.By, removal(d)))
	}
	return all
}

// removal is how to take the deciding rule away.
func removal(d Decision) string {
	words := strings.Fields(d.Chain)
	switch {
	case strings.HasPrefix(d.By, "policy") && len(words) == 3 && words[1] == "filter":
		return "iptables -P " + words[2] + " ACCEPT   (or accept the cluster's network there: twilld --iptables-forward-rules)"
	case strings.HasPrefix(d.By, "-A "):
		return "iptables -t " + words[1] + " -D " + strings.TrimPrefix(d.By, "-A ")
	}
	return ""
}

// flows are the packets that have to pass.
func flows(f Facts) []flow {
	var all []flow
	for _, local := range f.Lease.Snapshot.Local.Stacks {
		pod := podOf(local.Subnet)
		other := pod.Next()
		all = append(all, sameNode(f, pod, other)...)
		for i, w := range f.Ways {
			if w.Subnet.Addr().Is4() != local.Is4() || i >= mostPeers {
				continue
			}
			out := wantedDevice(f, w.Subnet)
			there := Packet{Src: pod, Dst: w.Pod, In: f.Bridge, Out: out, Proto: "tcp", DPort: 80}
			back := Packet{Src: w.Pod, Dst: pod, In: out, Out: f.Bridge, Proto: "tcp", DPort: 80}
			what := fmt.Sprintf("a packet of a pod to a pod of %s", w.Node)
			for _, p := range []Packet{there, back} {
				all = append(all, flow{"prerouting", p, what, onlyStop("prerouting-dropped")}, flow{"forward", p, what, forwardStop},
					flow{"postrouting", p, what, postrouting})
				what = fmt.Sprintf("a packet of a pod of %s to a pod", w.Node)
			}
			all = append(all, tunnel(f, w)...)
		}
	}
	return all
}

// podOf is an address of a subnet that a pod could have.
func podOf(subnet netip.Prefix) netip.Addr { return subnet.Addr().Next().Next() }

// wantedDevice is the device by which a subnet is to be reached.
func wantedDevice(f Facts, subnet netip.Prefix) string {
	key := netstate.Route{Dst: subnet, Metric: netstate.DefaultMetric(subnet.Addr())}.Key()
	if r, ok := f.Want[key].(netstate.Route); ok {
		return r.Dev
	}
	return ""
}

// sameNode is a packet between two pods of this node: bridged, and with br_netfilter forwarded all the same.
func sameNode(f Facts, a, b netip.Addr) []flow {
	name := "net/bridge/bridge-nf-call-iptables"
	if a.Is6() {
		name = "net/bridge/bridge-nf-call-ip6tables"
	}
	if f.Sysctls[name] != "1" {
		return nil
	}
	p := Packet{Src: a, Dst: b, In: f.Bridge, Out: f.Bridge, Proto: "tcp", DPort: 80}
	return []flow{{"forward", p, "a packet between two pods of this node", onlyStop("bridge-nf-dropped")}}
}

// tunnel is the outer packets to and from a peer that is reached by the overlay.
func tunnel(f Facts, w Way) []flow {
	o, ok := outerOf(f, w)
	if !ok {
		return nil
	}
	out := Packet{Src: o.local, Dst: w.Underlay, Out: o.dev, Proto: o.proto, DPort: o.port}
	in := Packet{Src: w.Underlay, Dst: o.local, In: o.dev, Proto: o.proto, DPort: o.port}
	to, from := "a "+o.what+" packet to "+w.Node, "a "+o.what+" packet of "+w.Node
	return []flow{{"output", out, to, onlyStop("udp-out-filtered")}, {"postrouting", out, to, onlyStop("udp-out-filtered")},
		{"prerouting", in, from, onlyStop("udp-in-filtered")}, {"input", in, from, onlyStop("udp-in-filtered")}}
}

func onlyStop(id string) func(Decision) string {
	return func(d Decision) string {
		if d.Stops() {
			return id
		}
		return ""
	}
}

func forwardStop(d Decision) string {
	switch {
	case !d.Stops():
		return ""
	case strings.HasPrefix(d.By, "policy"):
		return "forward-policy"
	}
	return "forward-rejected"
}

func postrouting(d Decision) string {
	switch {
	case d.Stops():
		return "postrouting-dropped"
	case d.Verdict == "masquerade":
		return "masquerade-catches-pods"
	}
	return ""
}
