package policy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ClusterNetworkPolicy is the object of policy.networking.k8s.io/v1alpha2, field by field.
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   ClusterSpec `json:"spec"`
	Status any         `json:"status,omitempty"` // others' reports, which mean nothing here
}

// DeepCopyObject implements runtime.Object, as NetworkPolicy does.
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object {
	c := *p
	p.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// ClusterSpec is what a ClusterNetworkPolicy wants. Its rules are asked in their order; the first that matches decides.
type ClusterSpec struct {
	Tier     Tier                 `json:"tier"`
	Priority int32                `json:"priority"` // policies of a tier are asked from the lowest to the highest
	Subject  ClusterPeer          `json:"subject"`
	Ingress  []ClusterIngressRule `json:"ingress,omitempty"`
	Egress   []ClusterEgressRule  `json:"egress,omitempty"`
}

// Tier is asked before or after NetworkPolicies.
type Tier string

// The tiers.
const (
	Admin    Tier = "Admin"    // before NetworkPolicies
	Baseline Tier = "Baseline" // where no NetworkPolicy isolates
)

// Action is what a rule does with what it matches.
type Action string

// The actions.
const (
	Accept Action = "Accept"
	Deny   Action = "Deny"
	Pass   Action = "Pass" // the next tier decides
)

// ClusterIngressRule decides about connections from any of the peers to any of the ports; all ports without Protocols.
type ClusterIngressRule struct {
	Name      string            `json:"name,omitempty"`
	Action    Action            `json:"action"`
	From      []ClusterPeer     `json:"from"`
	Protocols []ClusterProtocol `json:"protocols,omitempty"`
}

// ClusterEgressRule decides about connections to any of the ports of any of the peers; all ports without Protocols.
type ClusterEgressRule struct {
	Name      string              `json:"name,omitempty"`
	Action    Action              `json:"action"`
	To        []ClusterEgressPeer `json:"to"`
	Protocols []ClusterProtocol   `json:"protocols,omitempty"`
}

// ClusterPeer is all pods of the namespaces with some labels, or some pods of them.
type ClusterPeer struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPods       `json:"pods,omitempty"`
}

// NamespacedPods are the pods with some labels in the namespaces with some labels. An empty selector selects all.
type NamespacedPods struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       metav1.LabelSelector `json:"podSelector"`
}

// ClusterEgressPeer is pods, the addresses of the nodes with some labels, or address ranges. DomainNames are not
// supported.
type ClusterEgressPeer struct {
	ClusterPeer `json:",inline"`

	Nodes       *metav1.LabelSelector `json:"nodes,omitempty"`
	Networks    []string              `json:"networks,omitempty"`
	DomainNames []string              `json:"domainNames,omitempty"`
}

// ClusterProtocol is ports of one protocol, or those with a name, whatever their protocol.
type ClusterProtocol struct {
	TCP                  *ClusterPorts `json:"tcp,omitempty"`
	UDP                  *ClusterPorts `json:"udp,omitempty"`
	SCTP                 *ClusterPorts `json:"sctp,omitempty"`
	DestinationNamedPort string        `json:"destinationNamedPort,omitempty"`
}

// ClusterPorts are ports of a protocol.
type ClusterPorts struct {
	DestinationPort *ClusterPort `json:"destinationPort,omitempty"`
}

// ClusterPort is one port or a range.
type ClusterPort struct {
	Number int32             `json:"number,omitempty"`
	Range  *ClusterPortRange `json:"range,omitempty"`
}

// ClusterPortRange is the ports from Start to End.
type ClusterPortRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"`
}
