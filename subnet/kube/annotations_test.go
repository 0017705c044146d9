package kube

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/netstate"
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

// TestRecord: nothing is lost when a Node is read from its metadata, or from its JSON.
func TestRecord(t *testing.T) {
	n, a := largeNode(), newAnnotations(note, []subnet.Pool{pool4, pool6})
	want := record{
		name: "kubetest-peer-001", uid: "uid", created: time.Unix(1700000000, 0).UTC(), managed: "true", backend: "vxlan",
		v4: values{data: `{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}`, public: "192.0.2.1", overwrite: "203.0.113.1"},
		v6: values{data: "null", public: "2001:db8::1", overwrite: "2001:db8::2"},
	}
	if got := a.record(&n.ObjectMeta); got != want {
		t.Errorf("from metadata got %+v, want %+v", got, want)
	}
	want.podCIDRs = "10.244.1.0/24,fd00:10:244:1::/64"
	want.network = condition{"False", "TwillIsUp", "it is"}
	want.v4.choose, want.v6.choose = "192.0.2.77", "2001:db8::77"
	want.internal = "192.0.2.10,2001:db8::10"
	if got := a.own(read(t, n)); got != want {
		t.Errorf("from JSON got %+v, want %+v", got, want)
	}
}

// read returns a Node as the store reads it from the API server's JSON.
func read(t *testing.T, n *corev1.Node) *node {
	t.Helper()
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	got := &node{}
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestOldSpec: podCIDR stands alone on clusters before 1.20.
func TestOldSpec(t *testing.T) {
	n := testNode("old")
	n.Spec.PodCIDR = "10.244.1.0/24"
	if got := read(t, n).Spec.podCIDRs(); got != "10.244.1.0/24" {
		t.Errorf("got %q", got)
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
		{Type: corev1.NodeInternalIP, Address: "node.example"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::10"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	return n
}

// TestAddress: an annotation names one host, by an address of its family.
func TestAddress(t *testing.T) {
	a := newAnnotations(note, []subnet.Pool{pool4, pool6})
	for i, values := range []map[string]bool{
		{"192.0.2.1": true, "255.255.255.255": true, "": false, "192.0.2": false, "2001:db8::1": false, "::ffff:192.0.2.1": false,
			"0.0.0.0": false, "224.0.0.1": false, "192.0.2.1 ": false},
		{"2001:db8::1": true, "fe80::1": true, "192.0.2.1": false, "::ffff:192.0.2.1": false, "fe80::1%eth0": false, "::": false,
			"ff02::1": false, strings.Repeat("0", 64) + "::1": false},
	} {
		for value, good := range values {
			if got, err := a.both[i].address("x", value); (err == nil) != good || good && got.String() != value || !good && got.IsValid() {
				t.Errorf("%q of %s: got %v, %v", value, a.both[i].family, got, err)
			}
		}
	}
}

// TestPayload: what is no JSON is not published, and nothing is "null", as flannel has it.
func TestPayload(t *testing.T) {
	f := newAnnotations(note, nil).both[0]
	for value, want := range map[string]string{"": "", "null": "", " null ": "", `{"VNI":1}`: `{"VNI":1}`, "{": "error"} {
		if got, err := f.payload(value); want == "error" && (err == nil || got != nil) || want != "error" && (err != nil || string(got) != want) {
			t.Errorf("%q is read as %q, %v; want %q", value, got, err, want)
		}
	}
	for data, want := range map[string]string{"": "null", "{": "null", "[1, {": "null", "{ \"VNI\": 1 }": `{"VNI":1}`} {
		if got := encodePayload(json.RawMessage(data)); got != want {
			t.Errorf("%q is published as %q, want %q", data, got, want)
		}
	}
}

// TestOwnSubnet: a node's own podCIDR is within the network, or all of it in a cluster of one node.
func TestOwnSubnet(t *testing.T) {
	s := &Store{annotations: newAnnotations(note, []subnet.Pool{pool4}), pools: []subnet.Pool{pool4}, node: self}
	for podCIDRs, want := range map[string]string{
		"10.244.7.0/24": "10.244.7.0/24", "fd00::/64,10.244.7.9/24": "10.244.7.0/24", "10.244.0.0/16": "10.244.0.0/16",
		"10.244.0.0/15": "outside of the network", "10.9.0.0/24": "outside of the network", "fd00::/64": "have none in the network",
		"": "have none in the network", "10.244.7": "is not of the form",
	} {
		got, err := s.ownSubnet(record{podCIDRs: podCIDRs}, netstate.IPv4)
		if got.String() != want && (err == nil || !strings.Contains(err.Error(), want) || got.IsValid()) {
			t.Errorf("%q: got %v, %v; want %s", podCIDRs, got, err, want)
		}
	}
	l := subnet.Lease{Stacks: []subnet.Stack{{Underlay: netip.MustParseAddr("2001:db8::1")}}}
	_, err := s.local(l, record{podCIDRs: "10.244.7.0/24,fd00::/64"})
	if wantError(t, err, "an address family that the network config does not have"); !kubeclient.IsTerminal(err) {
		t.Error("the error is not terminal")
	}
}

// TestAdvertised: an annotation overwrites the address of its own family, and only one that is not empty.
func TestAdvertised(t *testing.T) {
	a := newAnnotations(note, []subnet.Pool{pool4, pool6})
	r := record{v6: values{overwrite: "2001:db8::9"}}
	for addr, want := range map[string]string{"192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::9"} {
		if got, err := a.advertised(netip.MustParseAddr(addr), r); err != nil || got.String() != want {
			t.Errorf("of %s became %v, %v; want %s", addr, got, err, want)
		}
	}
}

// TestValue: of a long annotation one byte more than is allowed is kept.
func TestValue(t *testing.T) {
	for length, want := range map[int]int{4096: 4096, 4097: 4097, 5000: 4097} {
		m := &metav1.ObjectMeta{Annotations: map[string]string{"a": strings.Repeat("x", length)}}
		if got := len(value(m, "a")); got != want {
			t.Errorf("of %d bytes %d are kept, want %d", length, got, want)
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

// TestDecodeNodes: nothing is lost when a list of Nodes is read from the API server's bytes, and a list that is cut off is
// an error.
func TestDecodeNodes(t *testing.T) {
	n, old := largeNode(), testNode("old")
	old.Spec.PodCIDR = "10.244.9.0/24"
	nodes := corev1.NodeList{Items: []corev1.Node{*n, *old, *testNode("none")}}
	nodes.ResourceVersion, nodes.Continue = "9", "more"
	raw, err := nodes.Marshal()
	must(t, err)
	body, err := (&runtime.Unknown{Raw: raw}).Marshal()
	must(t, err)
	body = append([]byte("k8s\x00"), body...)
	page, err := decodePage(body)
	must(t, err)
	list, err := page.metadata()
	must(t, err)
	if list.ResourceVersion != "9" || page.more != "more" || len(list.Items) != 3 ||
		!reflect.DeepEqual(list.Items[0].Annotations, n.Annotations) || list.Items[1].Name != "old" {
		t.Errorf("got list %+v", list)
	}
	for i, want := range []string{"10.244.1.0/24,fd00:10:244:1::/64", "10.244.9.0/24", ""} {
		if got := page.specs[i].podCIDRs(); got != want {
			t.Errorf("node %d has the podCIDRs %q, want %q", i, got, want)
		}
	}
	for _, bad := range [][]byte{nil, body[4:], body[:len(body)-7], []byte("k8s\x00\xff"), []byte(`{"items":[]}`)} {
		page, err := decodePage(bad)
		if err == nil {
			_, err = page.metadata()
		}
		if err == nil {
			t.Errorf("%.20q was read", bad)
		}
	}
}

// FuzzDecodeNodes: whatever comes, it is an error or a list, and no crash.
func FuzzDecodeNodes(f *testing.F) {
	nodes := corev1.NodeList{Items: []corev1.Node{*largeNode()}}
	raw, err := nodes.Marshal()
	must(f, err)
	body, err := (&runtime.Unknown{Raw: raw}).Marshal()
	must(f, err)
	f.Add(append([]byte("k8s\x00"), body...))
	f.Fuzz(func(t *testing.T, data []byte) {
		page, err := decodePage(data)
		if err != nil {
			return
		}
		if list, err := page.metadata(); err == nil && len(page.specs) != len(list.Items) {
			t.Errorf("%d specs for %d nodes", len(page.specs), len(list.Items))
		}
	})
}
