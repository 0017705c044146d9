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

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	kjson "sigs.k8s.io/json"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/twill-net/twill/policy"
)

// Read adds the objects of a YAML or JSON document to a snapshot: as in files for kubectl apply, or as kubectl get
// prints them. A Deployment, or another object that makes pods, is one pod of its name. Other kinds are left out.
// A policy with a field that it does not have is an error, with its name.
func Read(r io.Reader, s *policy.Snapshot) error {
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(r)); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return err
		}
		if err := add(text, object{}, s); err != nil {
			return err
		}
	}
}

// object is any object of Kubernetes, as far as it matters here.
type object struct {
	APIVersion string
	Kind       string
	Metadata   struct {
		Name, Namespace   string
		UID               string
		CreationTimestamp time.Time
		Labels            map[string]string
	}
	Items  []json.RawMessage
	Spec   json.RawMessage
	Status struct {
		Phase     string
		PodIPs    []struct{ IP netip.Addr }
		Addresses []struct{ Address string } // a Node's
	}
}

// add adds an object, or those of a list. In a list of one kind, as API servers print it, its items need not have theirs.
func add(text []byte, list object, s *policy.Snapshot) error {
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
	switch o.Kind {
	case "Namespace":
		if s.Namespaces == nil {
			s.Namespaces = map[string]labels.Set{}
		}
		s.Namespaces[o.Metadata.Name] = o.Metadata.Labels
	case "NetworkPolicy":
		return o.networkPolicy(text, s)
	case "ClusterNetworkPolicy":
		return o.clusterPolicy(text, s)
	case "Node":
		o.node(s)
	case "Pod":
		return o.pod(o.Spec, o.Metadata.Labels, s)
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob":
		return o.workload(s)
	}
	for _, item := range o.Items {
		if err := add(item, o, s); err != nil {
			return err
		}
	}
	return nil
}

// networkVersion is the version of NetworkPolicies that is read. Other groups have a kind of the same name.
const networkGroup, networkVersion = "networking.k8s.io/", "networking.k8s.io/v1"

func (o object) networkPolicy(text []byte, s *policy.Snapshot) error {
	var p policy.NetworkPolicy
	name := o.Metadata.Namespace + "/" + o.Metadata.Name
	switch {
	case o.APIVersion != "" && !strings.HasPrefix(o.APIVersion, networkGroup):
		return nil
	case o.APIVersion != "" && o.APIVersion != networkVersion:
		return fmt.Errorf("NetworkPolicy %s: its apiVersion is %s, want %s", name, o.APIVersion, networkVersion)
	}
	strict, err := kjson.UnmarshalStrict(text, &p)
	if err = errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("NetworkPolicy %s: %w", name, err)
	}
	p.Namespace = o.Metadata.Namespace
	s.Policies = append(s.Policies, p)
	return nil
}

// clusterVersion is the version of ClusterNetworkPolicies that is read. Other groups have a kind of the same name.
const clusterGroup, clusterVersion = "policy.networking.k8s.io/", "policy.networking.k8s.io/v1alpha2"

func (o object) clusterPolicy(text []byte, s *policy.Snapshot) error {
	var p policy.ClusterNetworkPolicy
	switch {
	case o.APIVersion != "" && !strings.HasPrefix(o.APIVersion, clusterGroup):
		return nil
	case o.APIVersion != "" && o.APIVersion != clusterVersion:
		return fmt.Errorf("ClusterNetworkPolicy %s: its apiVersion is %s, want %s", o.Metadata.Name, o.APIVersion, clusterVersion)
	}
	strict, err := kjson.UnmarshalStrict(text, &p)
	if err = errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("ClusterNetworkPolicy %s: %w", o.Metadata.Name, err)
	}
	s.ClusterPolicies = append(s.ClusterPolicies, p)
	return nil
}

// node adds a node with those of its addresses that are no names.
func (o object) node(s *policy.Snapshot) {
	n := policy.Node{Name: o.Metadata.Name, Labels: o.Metadata.Labels}
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			n.Addrs = append(n.Addrs, addr.Unmap())
		}
	}
	s.Nodes = append(s.Nodes, n)
}

// workload adds the pod that an object makes, under the object's name.
func (o object) workload(s *policy.Snapshot) error {
	type template struct {
		Metadata struct{ Labels map[string]string }
		Spec     json.RawMessage
	}
	var spec struct {
		Template    template
		JobTemplate struct{ Spec struct{ Template template } }
	}
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return fmt.Errorf("%s %s/%s: %w", o.Kind, o.Metadata.Namespace, o.Metadata.Name, err)
	}
	if o.Kind == "CronJob" {
		spec.Template = spec.JobTemplate.Spec.Template
	}
	return o.pod(spec.Template.Spec, spec.Template.Metadata.Labels, s)
}

// pod adds a pod.
func (o object) pod(text json.RawMessage, podLabels labels.Set, s *policy.Snapshot) error {
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
			return fmt.Errorf("%s %s/%s: %w", o.Kind, o.Metadata.Namespace, o.Metadata.Name, err)
		}
	}
	p := &policy.Pod{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Labels: podLabels, HostNetwork: spec.HostNetwork,
		UID: o.Metadata.UID, Created: o.Metadata.CreationTimestamp, Node: spec.NodeName}
	p.Ended = o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed"
	for _, ip := range o.Status.PodIPs {
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
	s.Pods = append(s.Pods, p)
	return nil
}
