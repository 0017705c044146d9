package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/subnet"
)

// cacheOf is the cache of a store that knows honest peers, as a list has them.
func cacheOf(t testing.TB, peers int, pools ...subnet.Pool) *nodes {
	t.Helper()
	s := &Store{annotations: newAnnotations(note, pools), pools: pools, node: self, own: own{changed: make(chan struct{}, 1)}}
	c := s.newNodes()
	var list []any
	for i := range peers {
		n := honestNode(i)
		c.podCIDRs.put(n.UID, fmt.Sprintf("10.244.%d.%d/29", i/32, i%32*8))
		list = append(list, metadataOf(n))
	}
	must(t, c.Replace(list, "1"))
	return c
}

func honestNode(i int) *corev1.Node {
	n := flannelNode(1)
	n.Name, n.UID = fmt.Sprintf("kubetest-honest-%04d", i), types.UID(fmt.Sprintf("uid-%d", i))
	return n
}

func metadataOf(n *corev1.Node) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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

// TestHostileEvent: an event of a Node with a megabyte of metadata allocates about what reading a megabyte does, and
// little of it is kept. BenchmarkHostileEvent tells how long it takes.
func TestHostileEvent(t *testing.T) {
	c := cacheOf(t, 5000, pool4)
	large, err := metadataOf(evilNode(70_000)).Marshal()
	must(t, err)
	if len(large) < 1<<20 {
		t.Fatalf("the event has %d bytes, want more than a megabyte", len(large))
	}
	allocated := uint64(0)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m := &metav1.PartialObjectMetadata{}
		must(t, m.Unmarshal(large))
		must(t, c.Update(m))
		runtime.ReadMemStats(&after)
		allocated = after.TotalAlloc - before.TotalAlloc
	}
	t.Logf("%d bytes: %d bytes allocated", len(large), allocated)
	if allocated > 4*uint64(len(large)) {
		t.Errorf("an event of %d bytes allocates %d bytes, want at most four times as much", len(large), allocated)
	}
	if e := c.entries["kubetest-evil"]; e == nil || len(fmt.Sprint(e.record)) > 2*maxData {
		t.Errorf("of an event of %d bytes %d are kept", len(large), len(fmt.Sprint(e)))
	}
}

// TestHostileRate: one Node that changes all the time makes few snapshots of all; a node that joins meanwhile is in one
// at once, with the last that the other one said.
func TestHostileRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, 100, pool4)
		defer c.queue.ShutDown()
		notified := func() bool {
			select {
			case <-c.changed:
				return true
			default:
				return false
			}
		}
		notified()
		evil, snapshots := flannelNode(1), 0
		evil.Name, evil.UID = "kubetest-evil", "evil"
		c.podCIDRs.put(evil.UID, "10.244.200.0/24")
		const writes, rate = 250, 25
		for i := range writes {
			evil.Annotations[note+"public-ip"] = fmt.Sprint("192.0.2.", i)
			must(t, c.Update(metadataOf(evil)))
			time.Sleep(time.Second / rate)
			if notified() {
				snapshots++
			}
		}
		if least, most := writes/rate, changesAtOnce+2*writes/rate; snapshots < least || snapshots > most {
			t.Errorf("%d changes in %d s made %d snapshots, want %d to %d", writes, writes/rate, snapshots, least, most)
		}
		honest := flannelNode(1)
		honest.Name, honest.UID = "kubetest-joins", "honest"
		c.podCIDRs.put(honest.UID, "10.244.201.0/24")
		must(t, c.Update(metadataOf(evil)))
		must(t, c.Update(metadataOf(honest)))
		if !notified() {
			t.Error("a node that joins waits for another one's changes")
		}
		time.Sleep(changesDelay)
		notified()
		leases, _, _ := c.peers()
		said := fmt.Sprint("192.0.2.", writes-1)
		if i := slices.IndexFunc(leases, func(l subnet.Lease) bool { return l.Node == evil.Name }); i < 0 ||
			leases[i].Stacks[0].Underlay.String() != said {
			t.Errorf("the last of its changes is not in the snapshot: %+v", leases[max(0, i)])
		}
	})
}

// FuzzHostile: whatever one Node says, in its metadata and its spec, other nodes' leases stay as they are, and its
// own is one subnet of each family in bounds, or a skip with a short reason.
func FuzzHostile(f *testing.F) {
	f.Add("10.244.1.0/24", "fd00:10:244:1::/64", "true", "vxlan", `{"VNI":1}`, "192.0.2.1", "null", "2001:db8::1", "", []byte(`{"f:spec":{"f:podCIDRs":{"v:\"10.244.9.0/24\"":{}}}}`), 1, uint8(0))
	f.Add("10.244.0.0/9", "10.244.0.0/32", "true", "\x1b[2J", "{", "255.255.255.255", "", "", "x", []byte{0xff}, 5000, uint8(1))
	f.Add("", "", "true", "", "", "10.0.0.1", "", "", "", []byte(nil), 100, uint8(2))
	f.Add("10.244.0.0/29", "::/0", "false", "host-gw", "null", "192.0.2.1", "", "", "", []byte(`{}`), 70000, uint8(3))
	const honest = 50
	c := cacheOf(f, honest, pool4, pool6)
	before, _, _ := c.peers()
	f.Fuzz(func(t *testing.T, cidr, cidr2, managed, backend, data, ip, data6, ip6, uid string, fields []byte, repeat int, kind uint8) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kubetest-evil", UID: types.UID(uid), ResourceVersion: "9"}}
		n.Annotations = map[string]string{
			note + "kube-subnet-manager": managed, note + "backend-type": backend, note + "public-ip": ip, note + "public-ipv6": ip6,
			note + "backend-data": strings.Repeat(data, 1+max(0, repeat)%10_000), note + "backend-v6-data": data6,
		}
		n.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(string(bytes.Repeat(fields, 1+max(0, repeat)%1000)))}}
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr, cidr2}
		switch m := metadataOf(n); kind % 3 {
		case 0:
			must(t, c.Add(m))
		case 1:
			must(t, c.Update(m))
		case 2:
			must(t, c.Delete(m))
		}
		if waiting := c.queue.Len(); waiting > 1 {
			t.Errorf("%d Nodes are to be read because of one", waiting)
		}
		c.podCIDRs.put(n.UID, nodeSpec{cidr, []string{cidr, cidr2}}.podCIDRs())
		c.learned(n.Name)
		peers, skips, _ := c.peers()
		checkHostile(t, before, peers, skips)
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
	n := &node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		var list struct{ Items []claim }
		if json.Unmarshal(data, &list) != nil {
			return
		}
		for _, c := range list.Items {
			p, ok := claimed(c.Name)
			if !ok {
				continue
			}
			if back, ok := claimed(claimName(p)); !ok || back != p || p != p.Masked() {
				t.Errorf("%q is read as %s, and that as %s", c.Name, p, back)
			}
			if c.of(n) && (!c.names(n) || slices.ContainsFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID != "u" })) {
				t.Errorf("a claim of another node counts as one's own: %+v", c)
			}
		}
	})
}

// BenchmarkPeers is what a change costs before anybody sees it: with records as they mostly are, and with such as offer several
// ways and name subnets of before.
func BenchmarkPeers(b *testing.B) {
	for _, bench := range []struct{ name, more string }{
		{"plain", ""},
		{"ways", `,"Port":8472,"Ways":[{"Type":"host-gw","Since":1800000000},{"Type":"vxlan"}],"Earlier":["10.245.1.0/24"]`},
	} {
		b.Run(bench.name, func(b *testing.B) {
			c := cacheOf(b, 5000, pool4)
			for i := range 5000 {
				n := honestNode(i)
				n.Annotations[note+"backend-data"] = `{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"` + bench.more + `}`
				must(b, c.Update(metadataOf(n)))
			}
			b.ReportAllocs()
			for b.Loop() {
				c.peers()
			}
		})
	}
}

func BenchmarkHostileEvent(b *testing.B) {
	c := cacheOf(b, 5000, pool4)
	large, err := metadataOf(evilNode(70_000)).Marshal()
	must(b, err)
	for b.Loop() {
		m := &metav1.PartialObjectMetadata{}
		must(b, m.Unmarshal(large))
		must(b, c.Update(m))
	}
}
