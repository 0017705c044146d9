package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// String is what the flow is: "TCP 8080 from shop/db-1 to shop/web-0".
func (f Flow) String() string { return fmt.Sprintf("%s from %s to %s", f.port(), f.From, f.To) }

func (f Flow) port() string {
	if _, hasPorts := protocolNumbers[f.Protocol]; !hasPorts {
		return string(f.Protocol)
	}
	return fmt.Sprintf("%s %d", f.Protocol, f.Port)
}

// Explain says in a sentence each why the ends' policies allow the flow, or do not.
func (v Verdict) Explain(f Flow) (egress, ingress string) {
	return v.Egress.explain(Egress, f.From, f), v.Ingress.explain(Ingress, f.To, f)
}

func (s Side) explain(d Direction, subject Endpoint, f Flow) string {
	direction := strings.ToLower(string(d))
	peer := "from " + f.From.String()
	if d == Egress {
		peer = "to " + f.To.String()
	}
	switch {
	case f.From.Pod != nil && f.From.Pod == f.To.Pod:
		return "a pod always reaches itself"
	case subject.Pod == nil:
		return fmt.Sprintf("%s is no pod", subject)
	case subject.Pod.HostNetwork:
		return fmt.Sprintf("%s is in the host's network, where no policy applies", subject)
	case s.Decision != nil:
		return fmt.Sprintf(ClusterKind+" %s %s %s %s in the %s tier, by its rule %s", s.Decision.Policy,
			verbs[s.Decision.Action], f.port(), peer, s.Decision.Tier, s.Decision.Rule)
	case len(s.Isolating) == 0:
		return fmt.Sprintf("no policy isolates %s for %s", subject, direction)
	case len(s.LeftOut) > 0:
		return fmt.Sprintf("%s %s %s for %s, and %s beyond what policies may cost the node: nothing is allowed", list(s.LeftOut),
			number(s.LeftOut, "isolates", "isolate"), subject, direction, number(s.LeftOut, "is", "are"))
	case len(s.Allowing) == 0:
		return fmt.Sprintf("%s %s %s for %s; no policy allows %s %s", list(s.Isolating),
			number(s.Isolating, "isolates", "isolate"), subject, direction, f.port(), peer)
	}
	return fmt.Sprintf("%s %s %s %s", list(s.Allowing), number(s.Allowing, "allows", "allow"), f.port(), peer)
}

// verbs are what rules of ClusterNetworkPolicies do.
var verbs = map[Action]string{Accept: "accepts", Deny: "denies", Pass: "passes on"}

func number(all []string, one, many string) string {
	if len(all) == 1 {
		return one
	}
	return many
}

// list is "a", "a and b" or "a, b and c".
func list(all []string) string {
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

// Describe says what a policy allows in a direction, a line for each rule.
func (p *Policy) Describe(d Direction) (lines []string) {
	if d == Ingress {
		for _, r := range p.Spec.Ingress {
			lines = append(lines, describe(r.Ports)+" from "+p.describePeers(r.From))
		}
		return lines
	}
	for _, r := range p.Spec.Egress {
		lines = append(lines, describe(r.Ports)+" to "+p.describePeers(r.To))
	}
	return lines
}

func describe(ports []RulePort) string {
	if len(ports) == 0 {
		return "everything"
	}
	var all []string
	for _, p := range ports {
		text := string(TCP)
		if p.Protocol != nil {
			text = string(*p.Protocol)
		}
		if p.Port != nil {
			text += " " + p.Port.String()
		}
		if p.EndPort != nil {
			text += fmt.Sprintf("–%d", *p.EndPort)
		}
		all = append(all, text)
	}
	return list(all)
}

func (p *Policy) describePeers(peers []Peer) string {
	if len(peers) == 0 {
		return "everywhere"
	}
	return list(mapped(peers, p.describePeer))
}

func mapped[T any](all []T, f func(T) string) []string {
	texts := make([]string, 0, len(all))
	for _, one := range all {
		texts = append(texts, f(one))
	}
	return texts
}

func (p *Policy) describePeer(peer Peer) string {
	if b := peer.IPBlock; b != nil {
		if len(b.Except) > 0 {
			return b.CIDR + " without " + list(b.Except)
		}
		return b.CIDR
	}
	if peer.NamespaceSelector == nil {
		namespace, _, _ := strings.Cut(p.Name, "/")
		return selected("pods", peer.PodSelector) + " of namespace " + namespace
	}
	return describePods(peer.NamespaceSelector, peer.PodSelector)
}

func describePods(namespaces, pods *metav1.LabelSelector) string {
	return selected("pods", pods) + " of " + selected("namespaces", namespaces)
}

// selected is "all pods", or "pods with app=web".
func selected(what string, s *metav1.LabelSelector) string {
	if s == nil || everything(s) {
		return "all " + what
	}
	return what + " with " + metav1.FormatLabelSelector(s)
}

// everything reports whether a selector selects all.
func everything(s *metav1.LabelSelector) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Empty()
}

// At returns the end of connections that has an address: a pod, or nobody known.
func (s Snapshot) At(a netip.Addr) Endpoint {
	claims := slices.DeleteFunc(slices.Clone(s.Pods), func(p *Pod) bool { return !slices.Contains(p.Addrs, a) })
	return Endpoint{Addr: a, Pod: newOwners(claims, s.Leases).of(a)}
}

// Find returns the pod of a snapshot.
func (s Snapshot) Find(namespace, name string) (*Pod, error) {
	i := slices.IndexFunc(s.Pods, func(p *Pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no pod %s/%s", namespace, name)
	}
	return s.Pods[i], nil
}
