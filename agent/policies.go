package agent

import "github.com/twill-net/twill/netstate"

// PolicyStatus says whether network policies are enforced on this node.
type PolicyStatus struct {
	Enforced bool   `json:"enforced"`
	Error    string `json:"error,omitempty"` // why not, or why they are not audited
	// Audit says that nothing is enforced: Audited is what policies would have denied since they changed, and has passed. At
	// most a hundred are here, those with the most packets.
	Audit   bool              `json:"audit,omitempty"`
	Audited []netstate.Denied `json:"audited,omitempty"`
	// Claims are pods of other nodes whose status has addresses of this node's, a few of them.
	Claims  []string `json:"claims,omitempty"`
	Claimed int      `json:"claimed,omitempty"` // how many such pods there are
	// LeftOut are NetworkPolicies that cost the node too much, by namespace/name: the pods that they select are closed.
	LeftOut []string `json:"leftOut,omitempty"`
	Refused []string `json:"refused,omitempty"` // ClusterNetworkPolicies that do: their last versions stay
	// Unmarked are the marks that pods' ports have lost, by the ports' names.
	Unmarked map[string]string `json:"unmarked,omitempty"`
}

// policyStatus returns nil if the agent does not follow network policies.
func (a *Agent) policyStatus() *PolicyStatus {
	if a.Policies == nil {
		return nil
	}
	var s PolicyStatus
	s.Audit, s.Audited = a.Policies.Audited()
	if err := a.Policies.Enforced(); err != nil {
		s.Error = err.Error()
	} else {
		s.Enforced = !s.Audit
	}
	s.Claims, s.Claimed = a.Policies.Claimed()
	s.LeftOut, s.Refused = a.Policies.LeftOut()
	s.Unmarked = a.Policies.Unmarked()
	return &s
}
