// Package manifest reads what policies are about from manifests: NetworkPolicies, ClusterNetworkPolicies, Namespaces,
// Nodes, Pods and what makes pods.
package manifest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	kjson "sigs.k8s.io/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/twill-net/twill/policy"
)

// Unread are objects that cannot be read, all but NetworkPolicies. What they say is not in the snapshot.
type Unread []Object

// Object is one of them.
type Object struct {
	Kind, Namespace, Name string // what is of no namespace has "default"
	Err                   error
}

func (u Unread) Error() string {
	all := make([]string, len(u))
	for i, o := range u {
		name := o.Namespace + "/" + o.Name
		if o.Kind == policy.ClusterKind || o.Kind == "Node" || o.Kind == "Namespace" {
			name = o.Name
		}
		all[i] = fmt.Sprintf("%s %s: %v", o.Kind, name, o.Err)
	}
	return strings.Join(all, "; ")
}

// Read adds the objects of a YAML or JSON document to a snapshot: as in files for kubectl apply, or as kubectl get
// prints them. A Deployment, or another object that makes pods, is one pod of its name. Other kinds are left out, and so are
// kinds of other projects' groups.
//
// A NetworkPolicy that an API server would have refused, as for a field that it does not have, allows nothing: it isolates the
// pods that it selects, as far as that can be read, and its Refused says why. Other objects that cannot be read are an
// Unread, after everything else was added.
func Read(r io.Reader, s *policy.Snapshot) error {
	in := reader{Snapshot: s}
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(r)); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		text, err := yaml.YAMLToJSONStrict(doc)
		if in.twice = err; err != nil { // a field twice, or no YAML
			if text, err = yaml.YAMLToJSON(doc); err != nil {
				return err
			}
		}
		if err := in.add(text, object{}); err != nil {
			return err
		}
	}
	if len(in.unread) > 0 {
		return in.unread
	}
	return nil
}

// reader reads objects into a snapshot.
type reader struct {
	*policy.Snapshot

	unread Unread
	twice  error // the document has a field twice, of which only the last one is read
}

// object is what every object of Kubernetes has, and a list.
type object struct {
	APIVersion string
	Kind       string
	Metadata   struct{ Name, Namespace string }
	Items      []json.RawMessage
}

// details is the rest, as far as it matters for what is no policy.
type details struct {
	Metadata struct {
		UID               string
		CreationTimestamp time.Time
		Labels            map[string]string
	}
	Spec   json.RawMessage
	Status struct {
		Phase     string
		PodIPs    []struct{ IP netip.Addr }
		Addresses []struct{ Address string } // a Node's
	}
}

// add adds an object, or those of a list. In a list of one kind, as API servers print it, its items need not have theirs.
func (in *reader) add(text []byte, list object) error {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("%.40q is not an object of Kubernetes: want apiVersion, kind, metadata: %w", text, err)
	}
	if o.Kind == "" {
		o.Kind, o.APIVersion = strings.TrimSuffix(list.Kind, "List"), list.APIVersion
	}
	if o.Metadata.Namespace == "" {
		o.Metadata.Namespace = "default"
	}
	switch {
	case strings.EqualFold(o.Kind, policy.NetworkKind): // another spelling is no kind, and nothing that is left out
		if !foreign(o.APIVersion) {
			in.networkPolicy(o, text)
		}
		return nil
	case strings.EqualFold(o.Kind, policy.ClusterKind):
		if !foreign(o.APIVersion) {
			err := in.clusterPolicy(o, text)
			o.Kind = policy.ClusterKind
			in.note(o, err)
		}
		return nil
	}
	in.note(o, in.other(o, text))
	for _, item := range o.Items {
		if err := in.add(item, o); err != nil {
			return err
		}
	}
	return nil
}

// note notes that an object cannot be read, if there is an error.
func (in *reader) note(o object, err error) {
	if err != nil {
		in.unread = append(in.unread, Object{o.Kind, o.Metadata.Namespace, o.Metadata.Name, err})
	}
}

// foreign reports whether an apiVersion is of another project's group, which may have kinds of the same names. Kubernetes'
// groups have no dot, or are under k8s.io. Without an apiVersion an object is Kubernetes'.
func foreign(apiVersion string) bool {
	group, _, ok := strings.Cut(apiVersion, "/")
	return ok && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}

// The versions of policies that are read.
const networkVersion, clusterVersion = "networking.k8s.io/v1", "policy.networking.k8s.io/v1alpha2"

// networkPolicy adds a NetworkPolicy. Of one that is refused, what it selects and the directions are left.
func (in *reader) networkPolicy(o object, text []byte) {
	var p policy.NetworkPolicy
	err := in.decode(o, text, policy.NetworkKind, networkVersion, &p)
	p.Name, p.Namespace = o.Metadata.Name, o.Metadata.Namespace
	if err == nil {
		err = checkMeta(&p.ObjectMeta)
	}
	if err != nil {
		p.Refuse(err.Error())
	}
	in.Policies = append(in.Policies, p)
}

// checkMeta returns the first reason for which an API server would refuse the metadata of an object of a namespace.
func checkMeta(m *metav1.ObjectMeta) error {
	wrong := validation.ValidateObjectMeta(m, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if len(wrong) == 0 {
		return nil
	}
	return wrong[0]
}

// clusterPolicy adds a ClusterNetworkPolicy, if its text can be read, and whom it is about.
func (in *reader) clusterPolicy(o object, text []byte) error {
	var p policy.ClusterNetworkPolicy
	err := in.decode(o, text, policy.ClusterKind, clusterVersion, &p)
	if err == nil {
		err = p.Spec.Check()
	}
	if err == nil {
		in.ClusterPolicies = append(in.ClusterPolicies, p)
	}
	return err
}

// decode reads a policy, and returns the first reason for which an API server would refuse its text.
func (in *reader) decode(o object, text []byte, kind, version string, to any) error {
	strict, err := kjson.UnmarshalStrict(text, to)
	switch {
	case in.twice != nil:
		return in.twice
	case o.Kind != kind:
		return fmt.Errorf("its kind is %s, want %s", o.Kind, kind)
	case o.APIVersion != "" && o.APIVersion != version:
		return fmt.Errorf("its apiVersion is %s, want %s", o.APIVersion, version)
	case err == nil && len(strict) > 0:
		return strict[0]
	}
	return err
}

// other adds what is no policy.
func (in *reader) other(o object, text []byte) error {
	switch o.Kind {
	case "Namespace", "Node", "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob":
	default:
		return nil
	}
	var d details
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	switch o.Kind {
	case "Namespace":
		if in.Namespaces == nil {
			in.Namespaces = map[string]labels.Set{}
		}
		in.Namespaces[o.Metadata.Name] = d.Metadata.Labels
		return nil
	case "Node":
		in.node(o, d)
		return nil
	case "Pod":
		return in.pod(o, d, d.Spec, d.Metadata.Labels)
	}
	return in.workload(o, d)
}

// node adds a node with those of its addresses that are no names.
func (in *reader) node(o object, d details) {
	n := policy.Node{Name: o.Metadata.Name, Labels: d.Metadata.Labels}
	for _, a := range d.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			n.Addrs = append(n.Addrs, addr.Unmap())
		}
	}
	in.Nodes = append(in.Nodes, n)
}

// workload adds the pod that an object makes, under the object's name.
func (in *reader) workload(o object, d details) error {
	type template struct {
		Metadata struct{ Labels map[string]string }
		Spec     json.RawMessage
	}
	var spec struct {
		Template    template
		JobTemplate struct{ Spec struct{ Template template } }
	}
	if err := json.Unmarshal(d.Spec, &spec); err != nil {
		return err
	}
	if o.Kind == "CronJob" {
		spec.Template = spec.JobTemplate.Spec.Template
	}
	return in.pod(o, d, spec.Template.Spec, spec.Template.Metadata.Labels)
}

// pod adds a pod.
func (in *reader) pod(o object, d details, text json.RawMessage, podLabels labels.Set) error {
	type container struct {
		RestartPolicy string
		Ports         []struct {
			Name          string
			Protocol      policy.Protocol
			ContainerPort uint16
		}
	}
	var spec struct {
		HostNetwork                bool
		NodeName                   string
		Containers, InitContainers []container
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &spec); err != nil {
			return err
		}
	}
	p := &policy.Pod{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Labels: podLabels, HostNetwork: spec.HostNetwork,
		UID: d.Metadata.UID, Created: d.Metadata.CreationTimestamp, Node: spec.NodeName}
	p.Ended = d.Status.Phase == "Succeeded" || d.Status.Phase == "Failed"
	for _, ip := range d.Status.PodIPs {
		p.Addrs = append(p.Addrs, ip.IP.Unmap())
	}
	sidecars := slices.DeleteFunc(spec.InitContainers, func(c container) bool { return c.RestartPolicy != "Always" })
	for _, c := range slices.Concat(spec.Containers, sidecars) {
		for _, port := range c.Ports {
			if port.Protocol == "" {
				port.Protocol = policy.TCP
			}
			p.Ports = append(p.Ports, policy.Port{Name: port.Name, Protocol: port.Protocol, Number: port.ContainerPort})
		}
	}
	in.Pods = append(in.Pods, p)
	return nil
}
