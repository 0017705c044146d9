// Package policy says which connections Kubernetes' NetworkPolicies and ClusterNetworkPolicies allow. It is pure: from
// pods, namespaces and policies to verdicts with their reasons.
//
// The semantics are those of networking.k8s.io/v1, NetworkPolicy, and of policy.networking.k8s.io/v1alpha2,
// ClusterNetworkPolicy. Where the APIs leave them open: a peer's address is the one behind the Service; a pod always
// reaches itself; pods of the host's network are part of their node, so that no policy selects them; pods that have ended
// are nobody's peers; of ClusterNetworkPolicies with one priority the one whose name comes first is asked first; the
// Baseline tier decides about the directions for which no NetworkPolicy isolates the pod.
package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/subnet"
)

// Snapshot is what is judged.
type Snapshot struct {
	Namespaces map[string]labels.Set // labels, by name; a namespace that is not here has none but its name
	Pods       []*Pod                // in no order; not to be altered, as others may share them
	Policies   []NetworkPolicy

	ClusterPolicies []ClusterNetworkPolicy
	Nodes           []Node // only ClusterNetworkPolicies are about them
	NoNodes         bool   // there may be Nodes, but they were not read

	// Leases are what nodes' pods get addresses from, as subnet.Snapshot.Leases returns them. An address in one of them is
	// no pod's of another node. The first address of each is where the node's own packets come from if they reach pods
	// through a tunnel: who allows a node by its address means that, too.
	Leases []subnet.Lease
}

// Node is a node, as far as policies know it.
type Node struct {
	Name   string
	Labels labels.Set
	Addrs  []netip.Addr
}

// Pod is a pod, as far as policies know it.
type Pod struct {
	Namespace, Name string
	UID             string    // of the object; empty in a manifest
	Created         time.Time // in whole seconds
	Node            string    // where it runs; empty until that is decided
	Labels          labels.Set
	Addrs           []netip.Addr // at most one a family
	Ports           []Port       // the containers', those with restart policy Always of init containers too
	HostNetwork     bool
	Ended           bool // its phase is Succeeded or Failed
}

// Port is a port that a container names.
type Port struct {
	Name     string
	Protocol Protocol
	Number   uint16
}

// Protocol is TCP, UDP or SCTP. A Flow may have another, such as ICMP: only rules without ports allow it.
type Protocol string

// The protocols that have ports.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// Equal reports whether policies see no difference between two pods.
func (p *Pod) Equal(o *Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.UID == o.UID && p.Node == o.Node &&
		p.HostNetwork == o.HostNetwork && p.Ended == o.Ended && p.Created.Equal(o.Created) &&
		maps.Equal(p.Labels, o.Labels) && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Ports, o.Ports)
}

// Newer reports whether p was created after o: of two pods of a node that have not ended and have one address, the newest has
// it now. Of two that were created within one second the same one is always the newer.
func (p *Pod) Newer(o *Pod) bool {
	return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.UID, o.UID)) > 0
}

// String is "namespace/name".
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Endpoint is one end of a connection.
type Endpoint struct {
	Addr netip.Addr
	Pod  *Pod // nil: an address that is no pod's
}

// String is the pod or the address.
func (e Endpoint) String() string {
	if e.Pod != nil {
		return e.Pod.String()
	}
	return e.Addr.String()
}

// Selectable reports whether policies can select the end, or name it as a peer by its labels.
func (e Endpoint) Selectable() bool { return e.Pod != nil && !e.Pod.HostNetwork && !e.Pod.Ended }

// Flow is a connection that one end opens to a port of the other.
type Flow struct {
	From, To Endpoint
	Protocol Protocol
	Port     uint16
}

// Verdict says whether a connection is allowed, by the policies of each direction.
type Verdict struct {
	Egress, Ingress Side
}

// Side is what the policies of one end say.
type Side struct {
	Decision  *Decision `json:",omitempty"` // a ClusterNetworkPolicy's; nil: none decides
	Isolating []string  // NetworkPolicies that select the end for this direction, sorted; none if the Admin tier decides
	Allowing  []string  // those of them that have a rule for the connection
	LeftOut   []string  `json:",omitempty"` // those of them that are beyond the node's budget: they deny everything
}

// Decision is what a rule of a ClusterNetworkPolicy decides.
type Decision struct {
	Policy string
	Tier   Tier
	Rule   string // its name, or its place such as "egress[0]"
	Action Action // Accept or Deny
}

// Allowed reports whether both ends' policies allow the connection.
func (v Verdict) Allowed() bool { return v.Egress.Allowed() && v.Ingress.Allowed() }

// Allowed reports whether a tier accepts the connection; or, if none decides, no policy isolates the end or one allows it.
func (s Side) Allowed() bool {
	if s.Decision != nil {
		return s.Decision.Action == Accept
	}
	return len(s.LeftOut) == 0 && (len(s.Isolating) == 0 || len(s.Allowing) > 0)
}

// Judge applies all policies to a connection.
func (r Rules) Judge(f Flow) Verdict {
	if f.From.Pod != nil && f.From.Pod == f.To.Pod {
		return Verdict{}
	}
	return Verdict{Egress: r.side(Egress, f.From, f.To, f), Ingress: r.side(Ingress, f.To, f.From, f)}
}

// side is what the policies of the subject say of a connection with the peer.
func (r Rules) side(direction Direction, subject, peer Endpoint, f Flow) (s Side) {
	a := r.Applying(direction, subject)
	if s.Decision = decide(a.Admin, direction, peer, f); s.Decision != nil {
		return s
	}
	for _, p := range a.Isolating {
		s.Isolating = append(s.Isolating, p.Name)
		if p.LeftOut {
			s.LeftOut = append(s.LeftOut, p.Name)
		}
		if slices.ContainsFunc(p.rules(direction), func(rule rule) bool { return rule.matches(peer, f) }) {
			s.Allowing = append(s.Allowing, p.Name)
		}
	}
	s.Decision = decide(a.Baseline, direction, peer, f)
	return s
}

// Applying are the policies that decide about an end's connections of a direction, in the order in which they are asked.
type Applying struct {
	Admin     []*ClusterPolicy
	Isolating []*Policy        // sorted by name
	Baseline  []*ClusterPolicy // none if a NetworkPolicy isolates
}

// None reports whether no policy applies, so that everything is allowed.
func (a Applying) None() bool {
	return len(a.Admin) == 0 && len(a.Isolating) == 0 && len(a.Baseline) == 0
}

// Applying are the policies that apply to an end in a direction.
func (r Rules) Applying(direction Direction, subject Endpoint) (a Applying) {
	if !subject.Selectable() {
		return a
	}
	a.Admin, a.Isolating = selecting(r.admin, direction, subject), r.Selecting(direction, subject)
	if len(a.Isolating) == 0 {
		a.Baseline = selecting(r.baseline, direction, subject)
	}
	return a
}

// Selecting are the NetworkPolicies that isolate an end for a direction, sorted by name.
func (r Rules) Selecting(direction Direction, subject Endpoint) (all []*Policy) {
	if !subject.Selectable() {
		return nil
	}
	for _, p := range r.byNamespace[subject.Pod.Namespace] {
		if p.isolates(direction) && p.subject.Matches(subject.Pod.Labels) {
			all = append(all, p)
		}
	}
	return all
}
