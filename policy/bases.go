package policy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/netstate"
)

// Bases returns what every table of a node has, whatever the policies say: with an isolated pod of the node's and with
// policies that isolate none, each with ClusterNetworkPolicies about what pods send and without; and without policies.
// Those with more come first. At the end are the same with the site's Doubt.
func Bases(site Site) (all []netstate.State) {
	for _, site.Doubt = range []bool{false, true} {
		all = append(all, bases(site)...)
	}
	return all
}

func bases(site Site) (all []netstate.State) {
	pod := &Pod{Namespace: "any", Name: "any", Node: site.Node}
	for _, s := range site.Subnets {
		pod.Addrs = append(pod.Addrs, s.Addr())
	}
	var isolates NetworkPolicy
	isolates.Namespace = pod.Namespace
	var sends ClusterNetworkPolicy
	nobody := &metav1.LabelSelector{MatchLabels: map[string]string{"is": "nobody"}}
	sends.Spec = ClusterSpec{Tier: Admin, Subject: ClusterPeer{Namespaces: nobody}, Egress: []ClusterEgressRule{
		{Action: Accept, To: []ClusterEgressPeer{{ClusterPeer: ClusterPeer{Namespaces: nobody}}}}}}
	for _, s := range []Snapshot{{ClusterPolicies: []ClusterNetworkPolicy{sends}}, {}} {
		s.Policies = []NetworkPolicy{isolates}
		idle, _ := Desired(site, s)
		s.Pods = []*Pod{pod}
		busy, _ := Desired(site, s)
		for key := range busy {
			if _, ok := idle[key]; !ok {
				delete(busy, key)
			}
		}
		all = append(all, busy, idle)
	}
	none, _ := Desired(site, Snapshot{})
	return append(all, none)
}
