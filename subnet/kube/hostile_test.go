package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/subnet"
)

// cacheOf is the cache of a store that knows honest peers, as a list has them.
func cacheOf(t testing.TB, peers int, pools ...subnet.Pool) *nodes {
	t.Helper()
	s := &Store{notes: newAnnotations(note, pools), pools: pools, node: self, own: own{kick: make(chan struct{}, 1)}}
	c := s.newNodes()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for i := range peers {
		n := flannelNode(1)
		n.Name, n.UID = fmt.Sprintf("kubetest-honest-%04d", i), types.UID(fmt.Sprintf("uid-%d", i))
		n.Spec.PodCIDR = fmt.Sprintf("10.244.%d.%d/29", i/32, i%32*8)
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		list.Items = append(list.Items, *n)
	}
	all, err := s.lean().list(bytes.NewReader(encode(t, list)))
	if err != nil {
		t.Fatal(err)
	}
	c.replace(all.items)
	return c
}

// happens has c read events as they come from a watch, until that ends.
func happens(c *nodes, stream []byte) error {
	w := newChanges(lean{c.notes.prefix, c.self}, io.NopCloser(bytes.NewReader(stream)))
	for {
		events, err := w.batch()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		c.enter(events)
	}
}

// evilNode is a peer whose metadata has nearly as much as etcd stores.
func evilNode(members int) *corev1.Node {
	n := flannelNode(1)
	n.Name, n.UID, n.ResourceVersion = "kubetest-evil", "evil", "7"
	var fields strings.Builder
	fields.WriteString(`{"f:spec":{"f:podCIDRs":{".":{}`)
	for i := range members {
		fmt.Fprintf(&fields, `,"v:\"%d\"":{}`, i)
	}
	fields.WriteString(`}}}`)
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1(fields.String())}}
	n.Labels = map[string]string{}
	for i := range members / 20 {
		n.Labels[fmt.Sprint("l", i)] = "x"
		n.Finalizers = append(n.Finalizers, fmt.Sprint("x/", i))
		n.OwnerReferences = append(n.OwnerReferences, metav1.OwnerReference{Name: "x"})
	}
	n.Annotations[note+"backend-data"] = `{"VtepMAC":"` + strings.Repeat("x", members*2) + `"}`
	return n
}

// TestHostileEvent: an event of a Node with a megabyte of metadata costs about what reading a megabyte does, and little of
// it is kept.
func TestHostileEvent(t *testing.T) {
	c := cacheOf(t, 5000, pool4)
	small, large := framed(t, modified, metadata(evilNode(1000))), framed(t, modified, metadata(evilNode(70_000)))
	if len(large) < 1<<20 {
		t.Fatalf("the event has %d bytes, want more than a megabyte", len(large))
	}
	cost := func(event []byte) (least time.Duration, allocated uint64) {
		least = time.Hour
		for range 10 {
			var before, after runtime.MemStats
			w := newChanges(lean{c.notes.prefix, c.self}, io.NopCloser(bytes.NewReader(event)))
			w.long = make([]byte, 2<<20) // a watch keeps it
			runtime.ReadMemStats(&before)
			begin := time.Now()
			events, err := w.batch()
			if err != nil {
				t.Fatal(err)
			}
			c.enter(events)
			least = min(least, time.Since(begin))
			runtime.ReadMemStats(&after)
			allocated = after.TotalAlloc - before.TotalAlloc
		}
		return least, allocated
	}
	few, _ := cost(small)
	many, allocated := cost(large)
	t.Logf("%d bytes: %s; %d bytes: %s, %d bytes allocated", len(small), few, len(large), many, allocated)
	if many > 20*time.Millisecond || allocated > 64<<10 {
		t.Errorf("an event of %d bytes takes %s and allocates %d bytes, want at most 20ms and 64 kB", len(large), many, allocated)
	}
}

// FuzzHostile: whatever one Node says, in its metadata and its spec, other nodes' leases stay as they are, and its own is
// one subnet of each family in bounds, or a skip with a short reason.
func FuzzHostile(f *testing.F) {
	f.Add("10.244.1.0/24", "fd00:10:244:1::/64", "true", "vxlan", `{"VNI":1}`, "192.0.2.1", "null", "2001:db8::1", "", []byte(`{"f:spec":{"f:podCIDRs":{"v:\"10.244.9.0/24\"":{}}}}`), 1, uint8(0))
	f.Add("10.244.0.0/9", "10.244.0.0/32", "true", "\x1b[2J", "{", "255.255.255.255", "", "", "x", []byte{0xff}, 5000, uint8(1))
	f.Add("", "", "true", "", "", "10.0.0.1", "", "", "", []byte(nil), 100, uint8(2))
	f.Add("10.244.0.0/29", "::/0", "false", "host-gw", "null", "192.0.2.1", "", "", "", []byte(`{}`), 70000, uint8(3))
	const honest = 50
	c := cacheOf(f, honest, pool4, pool6)
	before, _, _, _ := c.peers()
	f.Fuzz(func(t *testing.T, cidr, cidr2, managed, backend, data, ip, data6, ip6, uid string, fields []byte, repeat int, kind uint8) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kubetest-evil", UID: types.UID(uid), ResourceVersion: "9"}}
		n.Annotations = map[string]string{
			note + "kube-subnet-manager": managed, note + "backend-type": backend, note + "public-ip": ip, note + "public-ipv6": ip6,
			note + "backend-data": strings.Repeat(data, 1+max(0, repeat)%10_000), note + "backend-v6-data": data6,
		}
		n.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(string(bytes.Repeat(fields, 1+max(0, repeat)%1000)))}}
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr, cidr2}
		stream := framed(t, []string{added, modified, deleted, bookmark}[kind%4], metadata(n))
		if err := happens(c, stream); err != nil {
			t.Fatal(err)
		}
		whole, err := lean{note, self}.one(encode(t, n))
		if err != nil {
			t.Fatal(err)
		}
		c.resolved(whole)
		peers, skips, _, _ := c.peers()
		checkHostile(t, before, peers, skips)
		if waiting := len(c.strangers.names); waiting > 1 {
			t.Errorf("%d Nodes are to be read because of one", waiting)
		}
	})
}

func checkHostile(t *testing.T, before, peers []subnet.Lease, skips []subnet.Skip) {
	t.Helper()
	honest := slices.DeleteFunc(slices.Clone(peers), func(l subnet.Lease) bool { return l.Node == "kubetest-evil" })
	if !slices.EqualFunc(honest, before, subnet.Lease.Equal) {
		t.Fatalf("other nodes' leases became %+v", honest)
	}
	for _, s := range skips {
		if s.Node != "kubetest-evil" || len(s.Detail) > 500 {
			t.Errorf("got skip %+v", s)
		}
	}
	for _, l := range peers {
		if l.Node != "kubetest-evil" {
			continue
		}
		if len(l.Backend) > maxText || len(l.Stacks) > 2 || len(l.Stacks) == 2 && l.Stacks[0].Family() == l.Stacks[1].Family() {
			t.Errorf("got lease %+v", l)
		}
		for _, st := range l.Stacks {
			checkStack(t, st)
			if len(st.Data) > maxData {
				t.Errorf("got data of %d bytes", len(st.Data))
			}
			if room := st.Subnet.Addr().BitLen() - st.Subnet.Bits(); room < 2 {
				t.Errorf("got subnet %s", st.Subnet)
			}
		}
	}
}

// FuzzClaims: whatever stands in a list of Leases, a claim is a subnet under its name.
func FuzzClaims(f *testing.F) {
	f.Add([]byte(`{"items":[{"metadata":{"name":"twill-10-244-7-0-24","ownerReferences":[{"uid":"u"}]},"spec":{"holderIdentity":"n"}}]}`))
	f.Add([]byte(`{"items":[{"metadata":{"name":"twill-fd00-0001-0000-0000-0000-0000-0000-0000-64"}}]}`))
	f.Add([]byte(`{"items":[{"metadata":{"name":"twill-x-99"},"spec":{"holderIdentity":null}},null]}`))
	n := &node{record: record{name: "n", uid: "u"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		var list struct{ Items []claim }
		if json.Unmarshal(data, &list) != nil {
			return
		}
		for _, c := range list.Items {
			p, ok := claimed(c.Metadata.Name)
			if !ok {
				continue
			}
			if back, ok := claimed(claimName(p)); !ok || back != p || p != p.Masked() {
				t.Errorf("%q is read as %s, and that as %s", c.Metadata.Name, p, back)
			}
			if c.of(n) && (!c.names(n) || slices.ContainsFunc(c.Metadata.OwnerReferences, func(o claimOwner) bool { return o.UID != "u" })) {
				t.Errorf("a claim of another node counts as one's own: %+v", c)
			}
		}
	})
}

// BenchmarkPeers is what a change costs before anybody sees it.
func BenchmarkPeers(b *testing.B) {
	c := cacheOf(b, 5000, pool4)
	for b.Loop() {
		c.peers()
	}
}
