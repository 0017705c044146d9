package enforced

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

const nodePolicies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
`

// clusterPolicies let one pod send to port 80 of nodes, and to no other port of theirs.
func clusterPolicies(l *lab.Lab) string {
	var b strings.Builder
	b.WriteString(`apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nodes}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {podSelector: {matchLabels: {pod: held}}}}
  egress:
  - {action: Accept, to: [{nodes: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}
  - {action: Deny, to: [{nodes: {}}]}
`)
	for _, n := range l.Nodes() {
		var addrs []string
		for _, a := range n.Underlay() {
			addrs = append(addrs, fmt.Sprintf("{type: InternalIP, address: %q}", a))
		}
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Node, metadata: {name: %s}, status: {addresses: [%s]}}\n", n.Name,
			strings.Join(addrs, ", "))
	}
	return b.String()
}

// TestToNode: what a pod sends to its own node is judged by ClusterNetworkPolicies, as what it sends to others, and
// always allowed by NetworkPolicies. The node always reaches its pods.
func TestToNode(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tnode", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true,
		Sites: map[string]lab.Site{"": {Flags: []string{"--cluster-network-policy"}}}})
	w := toNodes{T: t, own: l.Nodes()[0], other: l.Nodes()[1]}
	for _, name := range []string{"held", "free"} {
		pod, err := w.own.AddPod(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		w.pods = append(w.pods, pod)
	}
	w.serve()
	w.expect("without policies", map[string]bool{"own node's 80": true, "own node's 81": true, "bridge's 81": true,
		"link-local 81": true, "other node's 80": true, "other node's 81": true}, nil)
	apply := func(name, text string) {
		t.Helper()
		if err := l.ApplyManifest(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		settled(t, l)
	}
	apply("isolated.yaml", nodePolicies)
	isolated := map[string]bool{"own node's 80": true, "own node's 81": true, "bridge's 81": true, "link-local 81": true}
	w.expect("isolated", isolated, nil)
	apply("nodes.yaml", clusterPolicies(l))
	delete(isolated, "link-local 81")
	w.expect("with a ClusterNetworkPolicy, too", map[string]bool{"own node's 80": true, "bridge's 81": true, "other node's 80": true},
		isolated)
	if err := l.DeleteManifest("nodes.yaml"); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	isolated["link-local 81"] = true
	w.expect("isolated again", isolated, nil)
}

// toNodes is two pods of a node, and that node and another one, which answer.
type toNodes struct {
	*testing.T
	own, other *lab.Node
	pods       []*lab.Pod // the one that is held from nodes, and one that is not
	targets    []struct {
		name string
		at   netip.AddrPort
	}
}

// serve answers on the nodes' addresses, on the bridge's, and on the pods'.
func (w *toNodes) serve() {
	w.Helper()
	add := func(n *lab.Node, name string, addr netip.Addr, port uint16) {
		at := netip.AddrPortFrom(addr, port)
		server, err := n.Echo(w.Context(), "tcp", at)
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() { server.Close() })
		if addr.Zone() != "" {
			at = netip.AddrPortFrom(addr.WithZone(w.zone(w.pods[0].Host, "eth0")), port)
		}
		w.targets = append(w.targets, struct {
			name string
			at   netip.AddrPort
		}{fmt.Sprint(name, " ", port), at})
	}
	for _, port := range []uint16{80, 81} {
		for _, a := range w.own.Underlay() {
			add(w.own, "own node's", a, port)
		}
		for _, a := range w.other.Underlay() {
			add(w.other, "other node's", a, port)
		}
	}
	for _, s := range w.own.Subnets() {
		add(w.own, "bridge's", s.Addr().Next(), 81)
	}
	add(w.own, "link-local", w.linkLocal(), 81)
	for _, p := range w.pods {
		for _, a := range p.Addrs {
			server, err := p.Echo(w.Context(), "tcp", netip.AddrPortFrom(a, 80))
			if err != nil {
				w.Fatal(err)
			}
			w.Cleanup(func() { server.Close() })
		}
	}
}

// linkLocal returns that address of the bridge.
func (w *toNodes) linkLocal() (found netip.Addr) {
	w.Helper()
	err := w.own.Links(func(nl *netlink.Handle) error {
		bridge, err := nl.LinkByName("cni0")
		if err != nil {
			return err
		}
		addrs, err := nl.AddrList(bridge, netlink.FAMILY_V6)
		for _, a := range addrs {
			if a.IP.IsLinkLocalUnicast() {
				found, _ = netip.AddrFromSlice(a.IP)
			}
		}
		return err
	})
	if err != nil || !found.IsValid() {
		w.Fatalf("the bridge's link-local address: %v", err)
	}
	return found.WithZone(w.zone(w.own.Host, "cni0"))
}

// zone is a device's index: package net remembers names, of whatever namespace.
func (w *toNodes) zone(h host.Host, device string) (index string) {
	w.Helper()
	err := h.Links(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err == nil {
			index = strconv.Itoa(link.Attrs().Index)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return index
}

// expect compares what the pods reach. What the free one reaches is nil if it is the same.
func (w *toNodes) expect(when string, held, free map[string]bool) {
	w.Helper()
	if free == nil {
		free = held
	}
	for _, p := range w.pods {
		want := held
		if p.Name == "free" {
			want = free
		}
		for _, to := range w.targets {
			if got := w.asks(p.Ask, to.at, want[to.name]); got != want[to.name] {
				w.Errorf("%s: %s reaches %s (%s): %v", when, p.Name, to.name, to.at, got)
			}
		}
		for _, f := range netstate.Families {
			if at := netip.AddrPortFrom(p.Addr(f), 80); !w.asks(w.own.Host.Ask, at, true) {
				w.Errorf("%s: the node does not reach %s (%s)", when, p.Name, at)
			}
		}
	}
}

// asks reports whether there is an answer. One that is expected has more time.
func (w *toNodes) asks(ask func(context.Context, string, netip.AddrPort) error, at netip.AddrPort, want bool) bool {
	patience := 300 * time.Millisecond
	if want {
		patience = testwait.Limit
	}
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	return ask(ctx, "tcp", at) == nil
}
