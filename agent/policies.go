package agent

// PolicyStatus says whether network policies are enforced on this node.
type PolicyStatus struct {
	Enforced bool   `json:"enforced"`
	Error    string `json:"error,omitempty"` // why not
}

// policyStatus returns nil if the agent does not enforce network policies.
func (a *Agent) policyStatus() *PolicyStatus {
	if a.Policies == nil {
		return nil
	}
	if err := a.Policies.Enforced(); err != nil {
		return &PolicyStatus{Error: err.Error()}
	}
	return &PolicyStatus{Enforced: true}
}
