package kube

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

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

// TestTrim checks that nothing is lost on the way through the transformed first list.
func TestTrim(t *testing.T) {
	n := flannelNode(1)
	n.Annotations[note+"public-ip-overwrite"] = "203.0.113.1"
	n.Annotations["other/annotation"] = "large"
	n.UID, n.ResourceVersion = "uid", "7"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: "False", Reason: "TwillIsUp"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	a := newAnnotations(note, []subnet.Pool{pool4})
	for _, c := range []*nodes{{notes: a, self: n.Name}, {notes: a, self: "other"}} {
		obj, err := c.Transformer()(n)
		if err != nil {
			t.Fatal(err)
		}
		trimmed := obj.(*corev1.Node)
		own := c.self == n.Name
		if got, want := a.record(trimmed, own), a.record(n, own); got != want || got.uid != "uid" || got.v4.overwrite == "" {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if trimmed.ResourceVersion != "7" || len(trimmed.Status.Images) > 0 || trimmed.Annotations["other/annotation"] != "" {
			t.Errorf("got %+v", trimmed)
		}
	}
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
