package policy

import (
	"k8s.io/apimachinery/pkg/util/intstr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// NetworkPolicy is the object of networking.k8s.io/v1, field by field. Kubernetes' own type brings all objects of core/v1
// into a program, 3.4 MB.
type NetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   Spec `json:"spec"`
	Status any  `json:"status,omitempty"` // as Kubernetes 1.24 to 1.27 have it, which means nothing here

	Refused string `json:"-"` // why an API server would have refused it: it allows nothing
}

// DeepCopyObject implements runtime.Object. Specs are not altered, so copies share them.
func (p *NetworkPolicy) DeepCopyObject() runtime.Object {
	c := *p
	p.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// Refuse leaves what the policy selects, and the directions; both if it does not name them. It allows nothing then.
func (p *NetworkPolicy) Refuse(why string) {
	p.Refused, p.Spec.Ingress, p.Spec.Egress = why, nil, nil
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []Direction{Ingress, Egress}
	}
}

// Spec is what a policy wants.
type Spec struct {
	PodSelector metav1.LabelSelector `json:"podSelector"`
	Ingress     []IngressRule        `json:"ingress"`
	Egress      []EgressRule         `json:"egress"`
	PolicyTypes []Direction          `json:"policyTypes"`
}

// IngressRule allows connections from any of the peers to any of the ports.
type IngressRule struct {
	Ports []RulePort `json:"ports"`
	From  []Peer     `json:"from"`
}

// EgressRule allows connections to any of the ports of any of the peers.
type EgressRule struct {
	Ports []RulePort `json:"ports"`
	To    []Peer     `json:"to"`
}

// RulePort is a protocol (TCP, if it is not named) with all of its ports, one, those up to EndPort, or a port by its name.
type RulePort struct {
	Protocol *Protocol           `json:"protocol"`
	Port     *intstr.IntOrString `json:"port"`
	EndPort  *int32              `json:"endPort"`
}

// Peer is an IPBlock, or the pods with some labels in the namespaces with some labels.
type Peer struct {
	PodSelector       *metav1.LabelSelector `json:"podSelector"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	IPBlock           *IPBlock              `json:"ipBlock"`
}

// IPBlock is an address range without some of its parts.
type IPBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except"`
}

// Direction is a direction that policies isolate, as policyTypes names it.
type Direction string

// The directions, seen from the pod that a policy selects.
const (
	Ingress Direction = "Ingress"
	Egress  Direction = "Egress"
)

func (d Direction) known() bool { return d == Ingress || d == Egress }
