package eval

import (
	"fmt"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestHealthy: on 28 different healthy labs the doctor has nothing to say of any node, also with probes.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for i, spec := range healthyLabs() {
		spec.Name = fmt.Sprintf("well%d", i+1)
		t.Run(fmt.Sprintf("%s_%s_%s_%s_%d_%d_%t", spec.Backend, spec.Family, spec.Underlay, spec.Store, spec.Nodes, spec.Pods, spec.DirectRouting), func(t *testing.T) {
			l := labtest.Up(t, spec)
			for _, n := range l.Nodes() {
				f := lookAt(t, l, n, doctor.AllProbes)
				if got := doctor.Check(f); len(got) > 0 {
					t.Errorf("%s: %s, the first: %+v", n.Name, ids(got), got[0])
				}
			}
		})
	}
}

func healthyLabs() []lab.Spec {
	var all []lab.Spec
	for _, backend := range []string{"vxlan", "host-gw"} {
		for _, family := range []string{lab.IPv4, lab.IPv6, lab.Dual} {
			for _, pods := range []int{1, 3} {
				all = append(all, lab.Spec{Backend: backend, Family: family, Underlay: lab.L2, Store: lab.File, Nodes: 3, Pods: pods})
			}
		}
	}
	for _, family := range []string{lab.IPv4, lab.IPv6, lab.Dual} {
		all = append(all, lab.Spec{Backend: "vxlan", Family: family, Underlay: lab.L3, Store: lab.File, Nodes: 3, Pods: 1},
			lab.Spec{Backend: "vxlan", Family: family, Underlay: lab.L3, DirectRouting: true, Store: lab.File, Nodes: 4, Pods: 1})
	}
	for _, family := range []string{lab.IPv4, lab.IPv6, lab.Dual} {
		for _, backend := range []string{"udp", "wireguard"} {
			all = append(all, lab.Spec{Backend: backend, Family: family, Underlay: lab.L2, Store: lab.File, Nodes: 3, Pods: 1})
		}
	}
	const spread = `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "DirectRouting": true, "SpreadMetrics": true}}`
	return append(all, lab.Spec{Backend: "vxlan", Family: lab.Dual, Underlay: lab.L2, Store: lab.File, Nodes: 3, Pods: 2, NetworkPolicy: true},
		lab.Spec{Backend: "vxlan", Family: lab.IPv4, Underlay: lab.L3, Store: lab.File, Nodes: 4, Pods: 1, DirectRouting: true, NetConf: []byte(spread)},
		lab.Spec{Backend: "vxlan", Family: lab.IPv4, Underlay: lab.L2, Store: lab.Etcd, Nodes: 5, Pods: 2},
		lab.Spec{Backend: "vxlan", Family: lab.Dual, Underlay: lab.L2, Store: lab.Kube, Nodes: 2, Pods: 1})
}
