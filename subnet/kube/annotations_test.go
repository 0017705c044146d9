package kube

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/twill-net/twill/subnet"
)

func TestPrefix(t *testing.T) {
	for given, want := range map[string]string{
		"flannel.alpha.coreos.com": "flannel.alpha.coreos.com/",
		"example.com/":             "example.com/",
		"example.com/net":          "example.com/net-",
		"example.com/net-":         "example.com/net-",
		"example":                  "",
		"example.com/a/b":          "",
		"Example.com":              "",
		"/net":                     "",
	} {
		got, err := fullPrefix(given)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q %v, want %q", given, got, err, want)
		}
	}
}

// TestLean checks that nothing is lost when Nodes are read from the API server's bytes.
func TestLean(t *testing.T) {
	n := largeNode()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Node{*n, *flannelNode(2)}}
	for _, self := range []string{n.Name, "other"} {
		d := lean{note, self}
		got, err := d.list(bytes.NewReader(encode(t, list)))
		if err != nil || got.version != "9" || len(got.items) != 2 || got.items[1].name != "kubetest-peer-002" {
			t.Fatalf("got %+v %v", got, err)
		}
		checkLean(t, got.items[0], self == n.Name)
		one, err := d.one(encode(t, n))
		if err != nil {
			t.Fatal(err)
		}
		checkLean(t, one, self == n.Name)
		if _, err := d.list(bytes.NewReader(encode(t, list)[:200])); err == nil {
			t.Error("a list that ends in the middle was read")
		}
	}
}

// checkLean compares with largeNode.
func checkLean(t *testing.T, got *node, own bool) {
	t.Helper()
	want := &node{version: "7", whole: true, record: record{
		name: "kubetest-peer-001", uid: "uid", created: time.Unix(1700000000, 0).UTC(), podCIDRs: "10.244.1.0/24,fd00:10:244:1::/64",
		managed: "true", backend: "vxlan",
		v4: notes{data: `{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}`, public: "192.0.2.1", overwrite: "203.0.113.1"},
		v6: notes{data: "null", public: "2001:db8::1", overwrite: "2001:db8::2"},
	}}
	if own {
		want.network, want.choose = condition{"False", "TwillIsUp", "it is"}, [2]string{"192.0.2.77", "2001:db8::77"}
		want.internal = "192.0.2.10,2001:db8::10"
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestOldSpec: podCIDR stands alone on clusters before 1.20.
func TestOldSpec(t *testing.T) {
	n := testNode("old")
	n.Spec.PodCIDR = "10.244.1.0/24"
	got, err := lean{prefix: note}.one(encode(t, n))
	if err != nil || got.podCIDRs != "10.244.1.0/24" {
		t.Errorf("got %+v %v", got, err)
	}
}

func largeNode() *corev1.Node {
	n := flannelNode(1)
	n.Annotations[note+"public-ip-overwrite"] = "203.0.113.1"
	n.Annotations[note+"node-public-ip"], n.Annotations[note+"node-public-ipv6"] = "192.0.2.77", "2001:db8::77"
	n.Annotations[note+"public-ipv6"], n.Annotations[note+"public-ipv6-overwrite"] = "2001:db8::1", "2001:db8::2"
	n.Annotations[note+"backend-v6-data"] = "null"
	n.Annotations[note+"unknown"], n.Annotations["other/annotation"] = "unknown", "large"
	n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "fd00:10:244:1::/64")
	n.UID, n.ResourceVersion = "uid", "7"
	n.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0))
	n.Spec.Unschedulable = true
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: "True", Reason: "KubeletReady"},
		{Type: corev1.NodeNetworkUnavailable, Status: "False", Reason: "TwillIsUp", Message: "it is"},
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "192.0.2.9"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::10"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	return n
}

// encode is o as the API server sends it.
func encode(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	scheme := testScheme()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme, scheme).Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzLean: whatever comes, it is an error or a list, and no crash.
func FuzzLean(f *testing.F) {
	f.Add(encode(f, &corev1.NodeList{Items: []corev1.Node{*largeNode()}}))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = lean{note, "kubetest-peer-001"}.list(bytes.NewReader(data))
		_, _ = lean{note, ""}.one(data)
	})
}

// TestRecordAge checks the order of peers: by age, and within one second by name.
func TestRecordAge(t *testing.T) {
	old, young := record{name: "z"}, record{name: "a"}
	young.created = young.created.AddDate(0, 0, 1)
	peers := []record{young, {name: "y"}, old}
	slices.SortFunc(peers, record.compare)
	if peers[0].name != "y" || peers[1].name != "z" || peers[2].name != "a" {
		t.Errorf("got %+v", peers)
	}
}

func ownPrefix(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, Options{AnnotationPrefix: "example.com/net"})
	acquire(t, store, want4)
	a := s.node(t, self).Annotations
	if a["example.com/net-public-ip"] != "192.0.2.200" || a["example.com/net-kube-subnet-manager"] != "true" {
		t.Errorf("got annotations %v", a)
	}
	_, err := New(t.Context(), Options{AnnotationPrefix: "example", APIURL: s.api.URL(), Node: self, Pools: []subnet.Pool{pool4}})
	wantError(t, err, `annotation prefix "example": want a domain name`)
}
