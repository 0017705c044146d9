package enforced

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// quarantine isolates a pod in both directions.
const quarantine = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: quarantine}
spec:
  podSelector: {matchLabels: {pod: suspect}}
  policyTypes: [Ingress, Egress]
`

// services are addresses that each node leads to a pod, in its name.
const services = `table ip services {
	chain to { type nat hook prerouting priority dstnat; ip daddr 192.0.2.1 dnat to %s; }
	chain from { type nat hook postrouting priority srcnat; ct original ip daddr 192.0.2.1 masquerade; }
}
table ip6 services {
	chain to { type nat hook prerouting priority dstnat; ip6 daddr 2001:db8::1 dnat to %s; }
	chain from { type nat hook postrouting priority srcnat; ct original ip6 daddr 2001:db8::1 masquerade; }
}
`

// service is the address that leads to a pod.
var service = map[netstate.Family]netip.Addr{
	netstate.IPv4: netip.MustParseAddr("192.0.2.1"), netstate.IPv6: netip.MustParseAddr("2001:db8::1")}

// TestQuarantine: a policy that isolates a pod stops its open connections in both directions, whoever opened them, with a pod of
// its node or of another, and through DNAT and masquerade, whether the fast path is on or not. They go on once it is allowed
// again. Those of others notice nothing.
func TestQuarantine(t *testing.T) {
	for name, fast := range map[string]bool{"rules alone": false, "fast path": true} {
		t.Run(name, func(t *testing.T) { isolateSuspect(t, fast) })
	}
}

func isolateSuspect(t *testing.T, fast bool) {
	t.Helper()
	l := labtest.Start(t, lab.Spec{Name: "tquar", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true, FastPath: fast})
	suspect, near, far := addPod(t, l.Nodes()[0], "suspect"), addPod(t, l.Nodes()[0], "near"), addPod(t, l.Nodes()[1], "far")
	settled(t, l)
	for n, to := range map[*lab.Node]*lab.Pod{l.Nodes()[0]: far, l.Nodes()[1]: suspect} {
		if err := n.LoadRules(t.Context(), fmt.Sprintf(services, to.Addr(netstate.IPv4), to.Addr(netstate.IPv6))); err != nil {
			t.Fatal(err)
		}
	}
	port := uint16(7000)
	var talks, others []*talk
	for _, f := range netstate.Families {
		for _, network := range []string{"tcp", "udp"} {
			for _, ends := range [][2]*lab.Pod{{suspect, near}, {near, suspect}, {suspect, far}, {far, suspect}} {
				port++
				talks = append(talks, open(t, network, ends[0], ends[1], netip.AddrPortFrom(ends[1].Addr(f), port)))
			}
			for _, ends := range [][2]*lab.Pod{{suspect, far}, {far, suspect}} {
				port++
				talks = append(talks, openThrough(t, network, ends[0], ends[1], netip.AddrPortFrom(service[f], port),
					netip.AddrPortFrom(ends[1].Addr(f), port)))
			}
			port++
			others = append(others, open(t, network, near, far, netip.AddrPortFrom(far.Addr(f), port)))
		}
	}
	pass(t, talks, 10)
	if fast {
		testwait.Pause(t, 3*time.Second, "conntrack knows UDP for two seconds before it is fast")
		for _, n := range l.Nodes() {
			testwait.Until(t, "a hundred packets take the fast path of "+n.Name, func() bool { return fastPackets(t, l, n) >= 100 })
		}
	}
	if err := l.ApplyManifest("quarantine.yaml", []byte(quarantine)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	if fast {
		keptOff(t, l, l.Nodes()[0], 1)
	}
	testwait.Pause(t, 100*time.Millisecond, "what was under way comes, too")
	silent := readings(talks)
	pass(t, others, many)
	for i, now := range readings(talks) {
		if now != silent[i] {
			t.Errorf("%s: something came %d times to the server, and %d times to the client", talks[i].name,
				now[0]-silent[i][0], now[1]-silent[i][1])
		}
	}
	if err := l.DeleteManifest("quarantine.yaml"); err != nil {
		t.Fatal(err)
	}
	pass(t, append(talks, others...), 10)
}
