package kube

import (
	"maps"
	"reflect"
	"slices"

	"github.com/twill-net/twill/policy"
)

// clusterState is what the API server has of ClusterNetworkPolicies and, once one is about them, of Nodes.
type clusterState struct {
	followed bool // or there are none
	policies objects[*policy.ClusterNetworkPolicy]
	nodes    objects[policy.Node]

	aboutNodes chan struct{} // closed once a policy is about nodes
	late       bool          // nodes were waited for, long enough
}

func newClusterState() clusterState {
	c := clusterState{aboutNodes: make(chan struct{})}
	c.policies.same = func(was, now *policy.ClusterNetworkPolicy) bool { return reflect.DeepEqual(was.Spec, now.Spec) }
	c.nodes.same = func(was, now policy.Node) bool {
		return maps.Equal(was.Labels, now.Labels) && slices.Equal(was.Addrs, now.Addrs)
	}
	return c
}

// listed reports whether everything is there that policies are about. It asks for nodes once a policy does.
func (c *clusterState) listed() bool {
	switch {
	case !c.followed:
		return true
	case c.policies.all == nil:
		return false
	case c.nodes.all != nil, c.late:
		return true
	}
	for _, p := range c.policies.all {
		if selectsNodes(p) {
			select {
			case <-c.aboutNodes:
			default:
				close(c.aboutNodes)
			}
			return false
		}
	}
	return true
}

func selectsNodes(p *policy.ClusterNetworkPolicy) bool {
	return slices.ContainsFunc(p.Spec.Egress, func(r policy.ClusterEgressRule) bool {
		return slices.ContainsFunc(r.To, func(to policy.ClusterEgressPeer) bool { return to.Nodes != nil })
	})
}

// tell notes in a Snapshot what there is.
func (c *clusterState) tell(s *policy.Snapshot) {
	s.ClusterPolicies = nil
	for _, p := range c.policies.all {
		s.ClusterPolicies = append(s.ClusterPolicies, *p)
	}
	s.Nodes, s.NoNodes = slices.Collect(maps.Values(c.nodes.all)), c.nodes.all == nil
}
