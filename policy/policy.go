// Package policy says which connections Kubernetes' NetworkPolicies allow. It is pure: from pods, namespaces and policies
// to verdicts with their reasons.
//
// The semantics are those of networking.k8s.io/v1, NetworkPolicy. Where the API leaves them open: a peer's address is the
// one behind the Service; a pod always reaches itself; pods of the host's network are part of their node, so that no
// policy selects them; pods that have ended are nobody's peers.
package policy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Snapshot is what is judged.
type Snapshot struct {
	Namespaces map[string]labels.Set // labels, by name; a namespace that is not here has none but its name
	Pods       []Pod
	Policies   []NetworkPolicy
}

// Pod is a pod, as far as policies know it.
type Pod struct {
	Namespace, Name string
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

// Protocol is TCP, UDP or SCTP.
type Protocol string

// The protocols that have ports.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

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
	Isolating []string // policies that select the end for this direction, sorted
	Allowing  []string // those of them that have a rule for the connection
}

// Allowed reports whether both ends' policies allow the connection.
func (v Verdict) Allowed() bool { return v.Egress.Allowed() && v.Ingress.Allowed() }

// Allowed reports whether no policy isolates the end, or one allows the connection.
func (s Side) Allowed() bool { return len(s.Isolating) == 0 || len(s.Allowing) > 0 }

// Judge applies all policies to a connection.
func (r Rules) Judge(f Flow) Verdict {
	if f.From.Pod != nil && f.From.Pod == f.To.Pod {
		return Verdict{}
	}
	return Verdict{Egress: r.side(Egress, f.From, f.To, f), Ingress: r.side(Ingress, f.To, f.From, f)}
}

// side is what the policies of the subject say of a connection with the peer.
func (r Rules) side(direction Direction, subject, peer Endpoint, f Flow) (s Side) {
	for _, p := range r.Selecting(direction, subject) {
		s.Isolating = append(s.Isolating, p.Name)
		if slices.ContainsFunc(p.rules(direction), func(rule rule) bool { return rule.matches(peer, f) }) {
			s.Allowing = append(s.Allowing, p.Name)
		}
	}
	return s
}

// Selecting are the policies that isolate an end for a direction, sorted by name.
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
