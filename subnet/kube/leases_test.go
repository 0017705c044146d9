package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// allowLeases gives the agent the rights of the manifest's Role, and no more.
func (s *server) allowLeases(t *testing.T) {
	t.Helper()
	s.post(t, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": claimSpace}})
	type object = map[string]any
	space := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + claimSpace + "/"
	name := object{"name": "twill"}
	s.post(t, space+"roles", object{"metadata": name, "rules": []object{{"apiGroups": []string{"coordination.k8s.io"},
		"resources": []string{"leases"}, "verbs": []string{"get", "list", "watch", "create", "patch"}}}})
	s.post(t, space+"rolebindings", object{"metadata": name,
		"roleRef":  object{"kind": "Role", "name": "twill", "apiGroup": "rbac.authorization.k8s.io"},
		"subjects": []object{{"kind": "User", "name": agentUser, "apiGroup": "rbac.authorization.k8s.io"}}})
}

func (s *server) deleteObjects(t *testing.T, l subnet.Lease) {
	t.Helper()
	for _, st := range l.Stacks {
		err := s.admin.leases.Delete().Namespace(claimSpace).Resource("leases").Name(claimName(st.Subnet)).Do(t.Context()).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// annotateObject sets annotations behind the agent's back; nil removes one.
func (s *server) annotateObject(t *testing.T, name string, set map[string]any) {
	t.Helper()
	full := map[string]any{}
	for k, v := range set {
		full[note+k] = v
	}
	s.patchObject(t, name, map[string]any{"annotations": full})
}

func (s *server) patchObject(t *testing.T, name string, metadata map[string]any) {
	t.Helper()
	to := s.admin.Metadata.Resource(leasesResource).Namespace(claimSpace)
	if err := s.admin.patch(t.Context(), to, name, types.MergePatchType, map[string]any{"metadata": metadata}); err != nil {
		t.Fatal(err)
	}
}

// object is a Lease object, nil if there is none.
func (s *server) object(t *testing.T, p string) *coordinationv1.Lease {
	t.Helper()
	l := &coordinationv1.Lease{}
	err := s.admin.leases.Get().Namespace(claimSpace).Resource("leases").Name(claimName(netip.MustParsePrefix(p))).Do(t.Context()).Into(l)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(t, err)
	return l
}

// leaseObject is what a node publishes in a Lease object.
func leaseObject(node string, uid types.UID, p, ip string, created int64) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: claimName(netip.MustParsePrefix(p)), CreationTimestamp: metav1.Unix(created, 0),
		Labels:          map[string]string{note + "kube-subnet-manager": "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}},
		Annotations:     map[string]string{note + "backend-type": "vxlan"},
	}}
	data, public := "backend-data", "public-ip"
	if strings.Contains(p, ":") {
		data, public = "backend-v6-data", "public-ipv6"
	}
	m.Annotations[note+data], m.Annotations[note+public] = `{"VNI":1}`, ip
	return m
}

func leasesOf(pools ...subnet.Pool) *leaseObjects {
	s := &Store{annotations: newAnnotations(note, pools), pools: pools, node: self, own: own{changed: make(chan struct{}, 1)}}
	return s.newLeases()
}

// saying is what a cache says: a line for each lease, in order, and for each skip.
func saying(c *records) (all []string) {
	leases, skips, _ := c.peers()
	for _, l := range leases {
		text := l.Node
		for _, st := range l.Stacks {
			text += fmt.Sprintf(" %s via %s", st.Subnet, st.Underlay)
		}
		all = append(all, text)
	}
	for _, s := range skips {
		all = append(all, s.Node+" is left out")
	}
	return all
}

// TestLeaseObjects: what Lease objects say of nodes, however they come.
func TestLeaseObjects(t *testing.T) {
	c := leasesOf(pool4, pool6)
	must(t, c.Replace(nil, "1"))
	want := func(what string, want ...string) {
		t.Helper()
		if got := saying(c.records); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	a4 := leaseObject("a", "ua", "10.244.1.0/24", "192.0.2.1", 20)
	a6 := leaseObject("a", "ua", "fd00:10:244:1::/64", "2001:db8::1", 10)
	b4 := leaseObject("b", "ub", "10.244.2.0/24", "192.0.2.2", 15)
	const b, both = "b 10.244.2.0/24 via 192.0.2.2", "a 10.244.1.0/24 via 192.0.2.1 fd00:10:244:1::/64 via 2001:db8::1"
	must(t, c.Add(a4))
	must(t, c.Add(b4))
	want("the older one first", b, "a 10.244.1.0/24 via 192.0.2.1")
	must(t, c.Add(a6))
	want("the oldest of a node's objects counts", both, b)
	version := c.version
	must(t, c.Update(a4.DeepCopy()))
	must(t, c.Update(b4.DeepCopy()))
	if c.version != version {
		t.Error("objects that say the same are a change")
	}
	moved := leaseObject("a", "ua", "10.244.9.0/24", "192.0.2.1", 30)
	must(t, c.Add(moved))
	want("of two subnets the younger object's counts", strings.ReplaceAll(both, "244.1.", "244.9."), b)
	must(t, c.Delete(moved))
	want("as before", both, b)
	changed := leaseObject("b", "ub", "10.244.2.0/24", "192.0.2.99", 15)
	must(t, c.Update(changed))
	want("another address", both, "b 10.244.2.0/24 via 192.0.2.99")
	taken := leaseObject("c", "uc", "10.244.2.0/24", "192.0.2.3", 15)
	must(t, c.Update(taken))
	want("another owner", both, "c 10.244.2.0/24 via 192.0.2.3")
	must(t, c.Replace([]any{b4, a4}, "9"))
	want("a list", b, "a 10.244.1.0/24 via 192.0.2.1")
	must(t, c.Delete(a4))
	must(t, c.Delete(a4))
	want("one that is gone", b)
	if len(c.parts) != 1 || len(c.nodes) != 1 || len(c.entries) != 1 || len(c.order) != 1 {
		t.Errorf("kept are %v, %v, %v", c.parts, c.nodes, c.entries)
	}
}

// TestForeignLeaseObjects: objects that no agent makes are skips, or nothing, and leave other nodes alone.
func TestForeignLeaseObjects(t *testing.T) {
	honest := leaseObject("honest", "u", "10.244.1.0/24", "192.0.2.1", 10)
	const line = "honest 10.244.1.0/24 via 192.0.2.1"
	owner := func(name, kind string) metav1.OwnerReference {
		return metav1.OwnerReference{Kind: kind, Name: name, UID: "x"}
	}
	for what, c := range map[string]struct {
		change func(*metav1.PartialObjectMetadata)
		want   []string
	}{
		"a name that is no subnet": {func(m *metav1.PartialObjectMetadata) { m.Name = "twill-evil" }, []string{line, "evil is left out"}},
		"host bits":                {func(m *metav1.PartialObjectMetadata) { m.Name = "twill-10-244-7-1-24" }, []string{line, "evil is left out"}},
		"all of the network":       {func(m *metav1.PartialObjectMetadata) { m.Name = "twill-10-244-0-0-16" }, []string{line, "evil is left out"}},
		"two owners": {func(m *metav1.PartialObjectMetadata) {
			m.OwnerReferences = append(m.OwnerReferences, owner("honest", "Node"))
		},
			[]string{line, "lease/twill-10-244-7-0-24 is left out"}},
		"a Pod's": {func(m *metav1.PartialObjectMetadata) { m.OwnerReferences[0].Kind = "Pod" },
			[]string{line, "lease/twill-10-244-7-0-24 is left out"}},
		"a name that is none": {func(m *metav1.PartialObjectMetadata) { m.OwnerReferences[0].Name = "\x1b[2J" },
			[]string{line, "lease/twill-10-244-7-0-24 is left out"}},
		"nobody's": {func(m *metav1.PartialObjectMetadata) { m.OwnerReferences = nil },
			[]string{line, "lease/twill-10-244-7-0-24 is left out"}},
		"an administrator's, with a node": {func(m *metav1.PartialObjectMetadata) {
			m.OwnerReferences, m.Annotations[note+"node-name"] = nil, "evil"
		}, []string{line, "evil 10.244.7.0/24 via 192.0.2.7"}},
		"much data": {func(m *metav1.PartialObjectMetadata) {
			m.Annotations[note+"backend-data"] = `"` + strings.Repeat("x", maxData) + `"`
		}, []string{line, "evil is left out"}},
		"the other family's address": {func(m *metav1.PartialObjectMetadata) { m.Annotations[note+"public-ip"] = "2001:db8::1" },
			[]string{line, "evil is left out"}},
		"this node's": {func(m *metav1.PartialObjectMetadata) { m.OwnerReferences[0].Name = self }, []string{line}},
	} {
		objects := leasesOf(pool4)
		evil := leaseObject("evil", "x", "10.244.7.0/24", "192.0.2.7", 20)
		c.change(evil)
		must(t, objects.Replace([]any{evil, honest}, "1"))
		if got := saying(objects.records); c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
}

// TestManyLeaseObjects: a node with more objects than a node has costs others little.
func TestManyLeaseObjects(t *testing.T) {
	c := leasesOf(pool4)
	for i := range 200 {
		must(t, c.Add(leaseObject("evil", "x", fmt.Sprintf("10.244.%d.0/24", i), "192.0.2.7", int64(i))))
	}
	if len(c.parts) != maxParts || len(c.nodes["evil"]) != maxParts || len(saying(c.records)) != 1 {
		t.Errorf("of 200 objects %d are kept, want %d", len(c.parts), maxParts)
	}
}

// TestFlappingLeaseObject: a node that takes the label from its object and puts it back all the time wakes others now and
// then only, as one that changes its annotations does.
func TestFlappingLeaseObject(t *testing.T) {
	c := leasesOf(pool4)
	must(t, c.Replace(nil, "1"))
	evil, woken := leaseObject("evil", "x", "10.244.7.0/24", "192.0.2.7", 1), 0
	for range 200 {
		must(t, c.Add(evil))
		must(t, c.Delete(evil))
		select {
		case <-c.changed:
			woken++
		default:
		}
	}
	if woken > 2*changesAtOnce {
		t.Errorf("200 changes wake %d times", woken)
	}
}

// FuzzLeaseObjects: whatever one object says, other nodes' leases stay as they are.
func FuzzLeaseObjects(f *testing.F) {
	f.Add("twill-10-244-7-0-24", "evil", "Node", "vxlan", `{"VNI":1}`, "192.0.2.7", "", 1, uint8(0))
	f.Add("twill-x", "", "Pod", "\x00", "{", "::", "honest-3", 5000, uint8(1))
	f.Add("twill-10-244-0-0-8", "lease/twill-x", "Node", "", "null", "255.255.255.255", "evil", 2, uint8(2))
	c := leasesOf(pool4, pool6)
	var list []any
	for i := range 20 {
		list = append(list, leaseObject(fmt.Sprintf("honest-%d", i), "h", fmt.Sprintf("10.244.%d.0/24", i+10), "192.0.2.1", 5))
	}
	must(f, c.Replace(list, "1"))
	before, _, _ := c.peers()
	f.Fuzz(func(t *testing.T, name, owner, kind, backend, data, ip, node string, repeat int, what uint8) {
		if strings.HasPrefix(owner, "honest-") || strings.HasPrefix(node, "honest-") || slices.ContainsFunc(list, func(o any) bool {
			return o.(*metav1.PartialObjectMetadata).Name == name
		}) {
			return // the admission policy keeps agents from that
		}
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			note + "backend-type": backend, note + "backend-data": strings.Repeat(data, 1+max(0, repeat)%10_000),
			note + "public-ip": ip, note + "public-ipv6": ip, note + "node-name": node,
		}}}
		if owner != "" {
			m.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner}}
		}
		switch what % 3 {
		case 0:
			must(t, c.Add(m))
		case 1:
			must(t, c.Update(m))
		case 2:
			must(t, c.Delete(m))
		}
		peers, skips, _ := c.peers()
		rest := slices.DeleteFunc(slices.Clone(peers), func(l subnet.Lease) bool { return !strings.HasPrefix(l.Node, "honest-") })
		if !slices.EqualFunc(rest, before, subnet.Lease.Equal) {
			t.Fatalf("other nodes' leases became %+v", rest)
		}
		for _, s := range skips {
			if len(s.Detail) > 500 {
				t.Errorf("got skip %+v", s)
			}
		}
		for _, l := range peers {
			for _, st := range l.Stacks {
				checkStack(t, st)
			}
		}
	})
}

// TestLeaseStore runs everything about published Lease objects against one API server.
func TestLeaseStore(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	t.Run("without the right", func(t *testing.T) { objectsForbidden(t, s) })
	s.clear(t)
	t.Run("without the right to read", func(t *testing.T) { blindReader(t, s) })
	s.allowLeases(t)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"what is published", objectsPublished},
		{"a claim of self-leasing", claimPublished},
		{"an administrator's reservation", reservationPublished},
		{"a node that comes back", objectsReturn},
		{"a subnet that changed", objectWithdrawn},
		{"another node's object", objectTaken},
		{"a heartbeat", heartbeat},
		{"a node of flannel joins", flannelJoins},
		{"two nodes of flannel, one of which comes and goes", twoStrangers},
		{"a guard that starts again", guardRestarts},
		{"Lease objects that cannot be read for a while", leasesAil},
		{"Lease objects that are forbidden for a moment", leasesForbiddenAtFirst},
		{"guards that cannot read", guardsCannotRead},
		{"rights that are taken away", rightsTaken},
		{"Lease objects that nobody keeps", staleObjects},
		{"the first agent that reads Lease objects", firstOfItsMode},
		{"nobody can publish", nobodyPublishes},
		{"guards that start again", guardsForget},
		{"nobody reads Nodes but guards", noGuardNeeded},
		{"an object of a subnet that is not the node's", forgedObject},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.clear(t)
			s.clearClaims(t)
			c.run(t, s)
		})
	}
}

func leaseOptions(mode string) Options { return Options{Store: mode, LeaseNamespace: claimSpace} }

// objectsForbidden: an agent that may not write Lease objects is in the network nevertheless, and says so once.
func objectsForbidden(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, waits := s.open(t, leaseOptions(subnet.StoreBoth))
	acquire(t, store, want4)
	if s.node(t, self).Annotations[note+"public-ip"] != "192.0.2.200" || !waits.has(taskObjects, "the API server forbids get on leases") {
		t.Errorf("told %q", waits.text)
	}
}

func objectsPublished(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24", "fd00:10:244:7::/64"))
	o := leaseOptions(subnet.StoreLeases)
	o.Pools = []subnet.Pool{pool4, pool6}
	store, _ := s.open(t, o)
	want := want4
	want.Stacks = append(slices.Clone(want4.Stacks), subnet.Stack{Underlay: netip.MustParseAddr("2001:db8::1")})
	l := acquire(t, store, want)
	four, six := s.object(t, "10.244.7.0/24"), s.object(t, "fd00:10:244:7::/64")
	if four == nil || six == nil {
		t.Fatal("not published")
	}
	for _, c := range []struct {
		object *coordinationv1.Lease
		want   map[string]string
	}{
		{four, map[string]string{note + "backend-type": "vxlan", note + "backend-data": string(want4.Stacks[0].Data), note + "public-ip": "192.0.2.200"}},
		{six, map[string]string{note + "backend-type": "vxlan", note + "backend-v6-data": "null", note + "public-ipv6": "2001:db8::1"}},
	} {
		o := c.object
		if !maps.Equal(o.Annotations, c.want) || !maps.Equal(o.Labels, map[string]string{note + "kube-subnet-manager": "true"}) ||
			*o.Spec.HolderIdentity != self || len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != s.node(t, self).UID {
			t.Errorf("got %+v, %+v; want annotations %v", o.ObjectMeta, o.Spec, c.want)
		}
	}
	asked := asks(store)
	if again := acquire(t, store, want); !again.Equal(l) || asked.count("PATCH")+asked.count("POST") > 0 {
		t.Errorf("a second time: %+v, %q", again, asked.said())
	}
	w := watching(t, store)
	testwait.Until(t, "the lease", func() bool { return w.last().Local.Equal(l) })
	s.annotateObject(t, six.Name, map[string]any{"public-ipv6": "2001:db8::bad"})
	testwait.Until(t, "the address to be put back", func() bool {
		return s.object(t, "fd00:10:244:7::/64").Annotations[note+"public-ipv6"] == "2001:db8::1"
	})
	s.patchObject(t, four.Name, map[string]any{"labels": nil})
	testwait.Until(t, "the label to be put back", func() bool { return len(s.object(t, "10.244.7.0/24").Labels) == 1 })
}

func claimPublished(t *testing.T, s *server) {
	s.allowClaims(t)
	s.createNode(t, testNode(self))
	o := leaseOptions(subnet.StoreLeases)
	o.ClaimNamespace = claimSpace
	store, waits := s.open(t, o)
	l := acquire(t, store, want4)
	got := s.object(t, l.Stacks[0].Subnet.String())
	if got == nil || got.Annotations[note+"public-ip"] != "192.0.2.200" || len(got.Labels) != 1 || len(s.claims(t)) != 1 || len(waits.text) > 0 {
		t.Errorf("the claim is %+v of %d, told %q", got, len(s.claims(t)), waits.text)
	}
}

// reservationPublished: an object that an administrator made for the node has no owner afterwards either.
func reservationPublished(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	s.createNode(t, testNode("kubetest-other", "10.244.8.0/24"))
	s.reserve(t, "10.244.7.0/24", new(self))
	store, _ := s.open(t, leaseOptions(subnet.StoreBoth))
	l := acquire(t, store, want4)
	if got := s.object(t, "10.244.7.0/24"); len(got.OwnerReferences) > 0 || got.Annotations[note+"node-name"] != self {
		t.Errorf("the reservation became %+v", got.ObjectMeta)
	}
	o := leaseOptions(subnet.StoreLeases)
	o.Node = "kubetest-other"
	reader, _ := s.open(t, o)
	w := watching(t, reader)
	testwait.Until(t, "the peer", func() bool { return len(w.last().Peers) == 1 && w.last().Peers[0].Equal(l) })
}

// objectsReturn deletes a Node and creates it again while its agent runs.
func objectsReturn(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	first := acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "the first snapshot", func() bool { return w.last().Local.Equal(first) })
	s.deleteNode(t, self)
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	testwait.Until(t, "the new owner", func() bool {
		o := s.object(t, "10.244.7.0/24")
		return len(o.OwnerReferences) == 1 && o.OwnerReferences[0].UID == s.node(t, self).UID
	})
	s.deleteObjects(t, first)
	testwait.Until(t, "the object that was deleted", func() bool { return s.object(t, "10.244.7.0/24") != nil })
}

// objectWithdrawn: a node that has another subnet now does not publish its old one.
func objectWithdrawn(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	acquire(t, store, want4)
	watching(t, store)
	s.deleteNode(t, self)
	s.createNode(t, testNode(self, "10.244.8.0/24"))
	testwait.Until(t, "the new object", func() bool { return s.object(t, "10.244.8.0/24") != nil })
	testwait.Until(t, "the old label to go", func() bool { return len(s.object(t, "10.244.7.0/24").Labels) == 0 })
}

// objectTaken: an object that another node holds is not written, and the node is in the network nevertheless.
func objectTaken(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	s.reserve(t, "10.244.7.0/24", new("kubetest-other"))
	store, waits := s.open(t, leaseOptions(subnet.StoreLeases))
	acquire(t, store, want4)
	if o := s.object(t, "10.244.7.0/24"); len(o.Labels)+len(o.Annotations) > 0 {
		t.Errorf("another node's object became %+v", o.ObjectMeta)
	}
	if !waits.has(taskObjects, `the Lease object kube-twill/twill-10-244-7-0-24 is of node "kubetest-other"`) ||
		s.node(t, self).Annotations[note+"public-ip"] != "192.0.2.200" {
		t.Errorf("told %q", waits.text)
	}
	watching(t, store)
	testwait.Until(t, "an event", func() bool { return len(s.eventsOf(t, self, "LeaseObjectNotPublished")) == 1 })
}

// heartbeat: what a kubelet writes into a peer's Node is of no interest, and of one's own it is read.
func heartbeat(t *testing.T, s *server) {
	s.createNode(t, testNode(self, "10.244.7.0/24"))
	o := leaseOptions(subnet.StoreLeases)
	for i, name := range []string{"kubetest-a", "kubetest-b", "kubetest-c", "kubetest-other"} { // three guards are older
		o.Node = name
		s.createNode(t, testNode(name, fmt.Sprintf("10.244.%d.0/24", 11+i)))
		peer, _ := s.open(t, o)
		acquire(t, peer, wantOf(o.Node))
	}
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	asked := asks(store)
	acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "the peers", func() bool { return len(w.last().Peers) == 4 })
	s.annotate(t, "kubetest-other", map[string]any{"heartbeat": "1"})
	s.annotate(t, self, map[string]any{"public-ip-overwrite": "203.0.113.1"})
	testwait.Until(t, "the overwritten address", func() bool {
		return w.last().Local.Stacks[0].Underlay.String() == "203.0.113.1"
	})
	testwait.Until(t, "it in the object", func() bool {
		return s.object(t, "10.244.7.0/24").Annotations[note+"public-ip"] == "203.0.113.1"
	})
	for _, name := range asked.whole() {
		if strings.Contains(name, "kubetest-other") || name == "nodes" {
			t.Errorf("read was %s, of %q", name, asked.said())
		}
	}
}
