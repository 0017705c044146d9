package kube

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/policy"
)

type object = map[string]any

const (
	crds     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	clusters = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
)

// definition is a CustomResourceDefinition without a schema.
var definition = object{
	"metadata": object{"name": "clusternetworkpolicies.policy.networking.k8s.io",
		"annotations": object{"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/network-policy-api/pull/300"}},
	"spec": object{"group": "policy.networking.k8s.io", "scope": "Cluster",
		"names": object{"kind": "ClusterNetworkPolicy", "plural": "clusternetworkpolicies", "singular": "clusternetworkpolicy"},
		"versions": []object{{"name": "v1alpha2", "served": true, "storage": true,
			"schema": object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
}

// clusterPolicies: a cluster without their API is one without such policies, and that is said once. Policies are told once
// it is there, with nodes if one is about them, and are gone with it.
func clusterPolicies(t *testing.T, s *server) {
	api := s.open(t, reader)
	asked := counted(api)
	w := watching(t, api, func(s *Source) { s.Cluster, s.lookForAPI = true, 100*time.Millisecond })
	testwait.Until(t, "the first change", func() bool { return w.told() == "rules" })
	asked.more(t, "clusternetworkpolicies", 3)
	w.mu.Lock()
	if len(w.waits) != 1 || w.waits[0] != "watch clusternetworkpolicies: list clusternetworkpolicies: "+errNoAPI.Error() {
		t.Errorf("told %q", w.waits)
	}
	w.mu.Unlock()

	s.create(t, crds, definition)
	testwait.Until(t, "word of the API", func() bool { return w.waited("watch clusternetworkpolicies: ok") })
	spec := object{"tier": "Admin", "priority": 3, "subject": object{"namespaces": object{}}}
	w.expect("rules", func() {
		s.create(t, clusters, object{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
			"metadata": object{"name": "one"}, "spec": spec, "status": object{"conditions": []any{}}})
	})
	if p := w.snapshot().ClusterPolicies; len(p) != 1 || p[0].Name != "one" || p[0].Spec.Priority != 3 || p[0].Spec.Subject.Namespaces == nil {
		t.Errorf("got the policies %+v", p)
	}
	s.create(t, "/api/v1/nodes", corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"role": "db"}}})
	s.patch(t, "/api/v1/nodes/n1/status", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`)
	defer s.delete(t, "/api/v1/nodes/n1")
	w.expect("rules", func() {
		s.patch(t, clusters+"/one", `{"spec":{"egress":[{"action":"Deny","to":[{"nodes":{}}]}]}}`)
	})
	if n := w.snapshot().Nodes; len(n) != 1 || n[0].Labels["role"] != "db" || len(n[0].Addrs) != 1 {
		t.Errorf("got the nodes %+v", n)
	}
	w.expect("rules", func() { s.patch(t, "/api/v1/nodes/n1", `{"metadata":{"labels":{"role":"web"}}}`) })
	w.expect("rules", func() { s.delete(t, crds+"/clusternetworkpolicies.policy.networking.k8s.io") })
	if p := w.snapshot().ClusterPolicies; len(p) > 0 {
		t.Errorf("left is %+v", p)
	}
}

// TestNodeDecode: the labels and addresses of Nodes, of an event and of a list, whole or not.
func TestNodeDecode(t *testing.T) {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "7", Labels: map[string]string{"role": "db", "zone": ""},
		Annotations: map[string]string{"a": "b"}}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalIP, Address: "::ffff:192.0.2.2"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"192.0.2.9"}}}
	want := policy.Node{Name: "n1", Labels: labels.Set{"role": "db", "zone": ""}, Addrs: []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.2")}}
	raw, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var one node
	if err := one.Unmarshal(raw); err != nil || fmt.Sprint(one.Node) != fmt.Sprint(want) || one.GetObjectMeta().GetResourceVersion() != "7" {
		t.Errorf("got %+v, %v, want %+v", one, err, want)
	}
	items := corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Node{n, n}}
	text, err := items.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Raw: text}
	body, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	body = append([]byte("k8s\x00"), body...)
	if list, err := readNodes(bytes.NewReader(body)); err != nil || len(list.Items) != 2 || list.ResourceVersion != "9" || fmt.Sprint(list.Items[1].Node) != fmt.Sprint(want) {
		t.Errorf("got %+v, %v", list, err)
	}
	if _, err := readNodes(bytes.NewReader(body[:len(body)-5])); err == nil {
		t.Error("a part of a list is read as if it were whole")
	}
	binary.BigEndian.PutUint32(raw[2:], 0xffffffff)
	if err := (&node{}).Unmarshal(raw); err == nil {
		t.Error("what is no Node is read as one")
	}
}
