package kube

import (
	"bytes"
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

// TestTrim checks that nothing is lost on the way through the metadata of a watch.
func TestTrim(t *testing.T) {
	n := largeNode()
	a := newAnnotations(note, []subnet.Pool{pool4})
	for _, c := range []*nodes{{notes: a, self: n.Name}, {notes: a, self: "other"}} {
		checkLean(t, a, n, c.trim(n), c.self == n.Name)
	}
}

// TestLean checks that nothing is lost when a list is read from the API server's bytes.
func TestLean(t *testing.T) {
	n := largeNode()
	a := newAnnotations(note, []subnet.Pool{pool4})
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Node{*n, *flannelNode(2)}}
	for _, self := range []string{n.Name, "other"} {
		d := lean{a.prefix, self}
		got, err := d.list(bytes.NewReader(encode(t, list)))
		if err != nil || got.ResourceVersion != "9" || len(got.Items) != 2 || got.Items[1].Name != "kubetest-peer-002" {
			t.Fatalf("got %+v %v", got, err)
		}
		checkLean(t, a, n, &got.Items[0], self == n.Name)
		one, err := d.one(encode(t, n))
		if err != nil {
			t.Fatal(err)
		}
		checkLean(t, a, n, one, self == n.Name)
		if _, err := d.list(bytes.NewReader(encode(t, list)[:200])); err == nil {
			t.Error("a list that ends in the middle was read")
		}
	}
}

func checkLean(t *testing.T, a annotations, whole, kept *corev1.Node, own bool) {
	t.Helper()
	if got, want := a.record(kept, own), a.record(whole, own); got != want || got.uid != "uid" || got.v4.overwrite == "" {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if kept.ResourceVersion != "7" || len(kept.Status.Images) > 0 || kept.Annotations["other/annotation"] != "" {
		t.Errorf("got %+v", kept)
	}
}

func largeNode() *corev1.Node {
	n := flannelNode(1)
	n.Annotations[note+"public-ip-overwrite"] = "203.0.113.1"
	n.Annotations["other/annotation"] = "large"
	n.UID, n.ResourceVersion = "uid", "7"
	n.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0))
	n.Spec.Unschedulable = true
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: "False", Reason: "TwillIsUp"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	return n
}

// encode is o as the API server sends it.
func encode(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	scheme := newScheme()
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
