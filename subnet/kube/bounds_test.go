package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/twill-net/twill/subnet"
)

// TestBounds: what a peer says beyond measure makes its lease a skip, whose reason does not repeat it.
func TestBounds(t *testing.T) {
	a := newAnnotations(note, []subnet.Pool{pool4, pool6})
	long := strings.Repeat("\x1b[2J", 50_000)
	for _, c := range []struct {
		what   string
		change func(*corev1.Node)
		want   string // empty: it is a lease
	}{
		{"nothing", func(*corev1.Node) {}, ""},
		{"long public-ip", func(n *corev1.Node) { n.Annotations[note+"public-ip"] = long }, "public-ip has more than 64 bytes"},
		{"long backend-data", func(n *corev1.Node) { n.Annotations[note+"backend-data"] = long }, "backend-data has more than 4096 bytes"},
		{"large backend-data", func(n *corev1.Node) { n.Annotations[note+"backend-data"] = `"` + strings.Repeat("x", maxData-2) + `"` }, ""},
		{"long backend-type", func(n *corev1.Node) { n.Annotations[note+"backend-type"] = long }, "backend-type has more than 64 bytes"},
		{"long annotation of others", func(n *corev1.Node) { n.Annotations["x/y"] = long }, ""},
		{"subnets of another length", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.16.0/20"} }, ""},
		{"a second subnet", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/24", "10.244.128.0/17"} }, ""},
		{"a malformed podCIDR", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1"} }, `podCIDR "10.244.1" is not of the form`},
		{"no room for pods", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.1/32"} }, "podCIDR 10.244.1.1/32 has no room for pods"},
		{"the least room for pods", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/30"} }, ""},
		{"as much as the network, elsewhere", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"172.16.0.0/16"} }, ""},
		{"no podCIDR", func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil }, "neither a podCIDR"},
		{"no annotations of a family", func(n *corev1.Node) { n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "fd00:10:244:1::/64") }, ""},
		{"half of the annotations", func(n *corev1.Node) { delete(n.Annotations, note+"public-ip") }, `public-ip "" is not an IPv4 address`},
		{"the other half", func(n *corev1.Node) { delete(n.Annotations, note+"backend-data") }, ""},
		{"the network", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.0.0/16"} }, "podCIDR 10.244.0.0/16 has all of the network"},
		{"more than it", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.0.0.0/8"} }, "podCIDR 10.0.0.0/8 has all of the network"},
	} {
		n := flannelNode(1)
		c.change(n)
		read := a.record(&n.ObjectMeta)
		read.podCIDRs = nodeSpec{n.Spec.PodCIDR, n.Spec.PodCIDRs}.podCIDRs()
		l, err := a.lease(read)
		switch {
		case c.want == "" && (err != nil || len(l.Stacks) != 1):
			t.Errorf("%s: got %+v %v, want one stack", c.what, l, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 100):
			t.Errorf("%s: got %v, want %s", c.what, err, c.want)
		}
		if kept := len(read.v4.data) + len(read.v4.public) + len(read.backend); kept > 2*maxData {
			t.Errorf("%s: %d bytes are kept", c.what, kept)
		}
	}
}

// TestNoPools: without a network there is nothing to lease.
func TestNoPools(t *testing.T) {
	_, err := New(t.Context(), Options{APIURL: "http://127.0.0.1:1", Node: self})
	wantError(t, err, "kube store without a pool")
}
