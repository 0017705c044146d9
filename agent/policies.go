package agent

// PolicyStatus says whether network policies are enforced on this node.
type PolicyStatus struct {
	Enforced bool   `json:"enforced"`
	Error    string `json:"error,omitempty"` // why not
	// Claims are pods of other nodes whose status has addresses of this node's, a few of them.
	Claims  []string `json:"claims,omitempty"`
	Claimed int      `json:"claimed,omitempty"` // how many such pods there are
	// LeftOut are NetworkPolicies that cost the node too much, by namespace/name: the pods that they select are closed.
	LeftOut []string `json:"leftOut,omitempty"`
	Refused []string `json:"refused,omitempty"` // ClusterNetworkPolicies that do: their last versions stay
}

// policyStatus returns nil if the agent does not enforce network policies.
func (a *Agent) policyStatus() *PolicyStatus {
	if a.Policies == nil {
		return nil
	}
	s := PolicyStatus{Enforced: true}
	if err := a.Policies.Enforced(); err != nil {
		s = PolicyStatus{Error: err.Error()}
	}
	s.Claims, s.Claimed = a.Policies.Claimed()
	s.LeftOut, s.Refused = a.Policies.LeftOut()
	return &s
}
