package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// Policies are what is known of network policies, and of what enforces them on this node.
type Policies struct {
	Wanted bool   // the agent is to enforce them, or to audit
	Audit  bool   // the agent is to count what they deny, and to let it pass
	File   string // from which the agent reads them; empty: from the cluster's API
	// Snapshot is what the agent follows, if it reads files; nil: the node does not know it.
	Snapshot *policy.Snapshot `json:"-"`
	// Ask reads what the agent follows from the cluster's API; nil: it may not be asked, or Snapshot is known.
	Ask    func() (policy.Snapshot, error) `json:"-"`
	Tables netstate.State                  `json:"-"` // what the tables of network policies hold
	Plan   netstate.Plan                   `json:"-"` // what is wrong with them, as far as it is known how they should be
	Count  int                             // of the cluster's NetworkPolicies, as far as the doctor may ask for them
}

// PolicyStatus is what the agent says about its enforcement of network policies, at /status.
type PolicyStatus struct {
	Enforced bool   `json:"enforced"`
	Error    string `json:"error,omitempty"` // why not, or why they are not audited
	// Audit says that nothing is enforced: Audited is what policies would have denied since they changed, and has passed.
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

// engine is a program that enforces network policies, by what it leaves in the kernel.
type engine struct {
	name   string
	chain  string // how the names of its chains begin, in iptables or nftables
	table  string // of nftables, likewise
	device string // likewise
}

// engines are those that are known. A process alone proves nothing: most can also run without policies.
var engines = []engine{
	{"kube-router", "KUBE-ROUTER-FORWARD", "kube-router", ""},
	{"kube-router", "KUBE-NWPLCY-", "", ""},
	{"Calico", "cali-", "calico", ""},
	{"Cilium", "CILIUM_FORWARD", "", "cilium_"},
	{"kube-network-policies", "", "kube-network-policies", ""},
	{"Antrea", "ANTREA-FORWARD", "", "antrea-gw"},
	{"Weave's weave-npc", "WEAVE-NPC", "", ""},
}

// engineTrace is a piece of the kernel's state that an engine leaves.
type engineTrace struct{ name, by string }

// otherEngines returns what else than Twill enforces network policies here, each with a piece of state that shows it.
func (f Facts) otherEngines() (all []engineTrace) {
	add := func(name, by string) {
		if !slices.ContainsFunc(all, func(t engineTrace) bool { return t.name == name }) {
			all = append(all, engineTrace{name, by})
		}
	}
	begins := func(name, prefix string) bool { return prefix != "" && strings.HasPrefix(name, prefix) }
	for _, e := range engines {
		for _, c := range f.Chains {
			if begins(c.Name, e.chain) || c.Tool == "" && begins(c.Table, e.table) {
				add(e.name, "the chain "+c.String())
			}
		}
		for _, i := range f.Interfaces {
			if begins(i.Name, e.device) {
				add(e.name, "the device "+i.Name)
			}
		}
	}
	return all
}

// ipvs is the device of kube-proxy's mode IPVS, which has all addresses of Services.
const ipvs = "kube-ipvs0"

// checkPolicies is about whether network policies are enforced, by one engine, for all packets.
func (e *exam) checkPolicies() {
	others := e.otherEngines()
	if !e.Policies.Wanted {
		if e.Policies.Count > 0 && len(others) == 0 {
			e.find(policiesNotEnforced, "NetworkPolicies", "something that enforces them",
				plural(e.Policies.Count, "exists", "exist")+", and nothing on this node enforces them", "")
		}
		return
	}
	e.checkAudit(others)
	for _, o := range others {
		if e.Policies.Audit {
			break // no connection depends on both
		}
		e.find(policyEnginesBoth, o.name, "Twill alone", o.by+" is "+o.name+"'s", "")
	}
	if why, object := e.unenforced(); why != "" {
		e.find(policiesNotEnforced, object, e.followed()+" by twilld --network-policy", why, "").says(heals)
	}
	if s := e.Agent.Policies; s != nil {
		for _, claim := range s.Claims {
			e.find(addressClaimed, "Pods", "addresses of their own nodes", claim, "")
		}
		if more := s.Claimed - len(s.Claims); more > 0 && len(s.Claims) > 0 {
			e.found[len(e.found)-1].Count += more
		}
	}
	if s := e.Agent.Policies; s != nil {
		for _, name := range s.LeftOut {
			closed := "are closed"
			if e.Policies.Audit {
				closed = "would be closed if policies were enforced"
			}
			e.find(policyLeftOut, "NetworkPolicy "+name, "within --network-policy-budget", "it costs the node more, and the pods that it selects "+closed, "")
		}
		for _, name := range s.Refused {
			e.find(policyLeftOut, "ClusterNetworkPolicy "+name, "within --network-policy-budget", "it costs the node more, and its last version stays", "")
		}
	}
	if slices.ContainsFunc(e.Interfaces, func(i netstate.Interface) bool { return i.Name == ipvs }) {
		e.find(policiesIPVS, "kube-proxy", "mode nftables or iptables", "the device "+ipvs+" is there: its mode is IPVS", "")
	}
}

// checkAudit says that nothing is enforced while policies are audited, unless another engine enforces them.
func (e *exam) checkAudit(others []engineTrace) {
	if e.Policies.Audit && len(others) == 0 {
		e.find(policiesNotEnforced, "twilld --network-policy=audit", "enforced by twilld --network-policy",
			"they are audited: what they deny is counted, and passes", "").
			says("once kubectl twill policy shows nothing that is to pass, run twilld with --network-policy")
	}
}

// followed says what the agent is to do with policies.
func (f Facts) followed() string {
	if f.Policies.Audit {
		return "audited"
	}
	return "enforced"
}

// Unenforced adds the finding that a cluster has so many NetworkPolicies, and that nothing enforces them here.
func (d *Diagnosis) Unenforced(count int) {
	known := slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.kind() == policiesNotEnforced })
	if d.Policies != nil || count == 0 || known {
		return
	}
	e := exam{Facts: Facts{Policies: Policies{Count: count}}}
	e.checkPolicies()
	for _, f := range e.found {
		f.Place = d.Node
		d.Findings = append(d.Findings, f)
	}
	slices.SortStableFunc(d.Findings, func(a, b Finding) int { return cmp.Compare(a.kind().rank(), b.kind().rank()) })
}

// unenforced returns why policies are not enforced, or audited, although the agent is to do so, and what that is about.
func (f Facts) unenforced() (why, object string) {
	if s := f.Agent.Policies; s != nil && s.Error != "" {
		return s.Error, "twilld"
	}
	if len(f.Policies.Plan) == 0 {
		return "", ""
	}
	why = "not as they should be: " + strings.ReplaceAll(f.Policies.Plan[0].String(), "\n", "; ")
	if more := len(f.Policies.Plan) - 1; more > 0 {
		why += fmt.Sprintf(", and %d more", more)
	}
	return why, "the tables " + netstate.FilterTable
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "one " + one
	}
	return fmt.Sprint(n, " ", many)
}

// PolicyState is who enforces network policies on a node: Twill, or others.
type PolicyState struct {
	Enforced bool     `json:"enforced"`          // by Twill
	Error    string   `json:"error,omitempty"`   // why Twill does not, or does not audit, although it is to
	Audit    bool     `json:"audit,omitempty"`   // Twill counts what policies deny, and lets it pass
	Engines  []string `json:"engines,omitempty"` // others
	LeftOut  []string `json:"leftOut,omitempty"` // NetworkPolicies that cost the node too much, as PolicyStatus has them
	// Audited is what policies would have denied, as PolicyStatus has it.
	Audited []netstate.Denied `json:"audited,omitempty"`
}

// policyState returns nil if nobody enforces policies, or is to.
func (f Facts) policyState() *PolicyState {
	s := PolicyState{Enforced: f.Policies.Wanted && !f.Policies.Audit, Audit: f.Policies.Audit}
	if why, object := f.unenforced(); f.Policies.Wanted && why != "" {
		s.Enforced, s.Error = false, object+": "+why
	}
	if said := f.Agent.Policies; said != nil {
		s.LeftOut, s.Audited = said.LeftOut, said.Audited
	}
	for _, o := range f.otherEngines() {
		s.Engines = append(s.Engines, o.name)
	}
	if !f.Policies.Wanted && len(s.Engines) == 0 {
		return nil
	}
	return &s
}

// String says it in a word, as for a table.
func (s *PolicyState) String() string {
	switch {
	case s == nil:
		return "–"
	case s.Error != "" && s.Audit:
		return "not audited"
	case s.Error != "":
		return "not enforced"
	case s.Audit:
		return strings.Join(append([]string{"audit"}, s.Engines...), " ")
	case s.Enforced:
		return strings.Join(append([]string{"enforced"}, s.Engines...), " ")
	}
	return cmp.Or(strings.Join(s.Engines, " "), "–")
}
