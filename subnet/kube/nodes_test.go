package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// TestNodesOrder: whatever happens to nodes, the leases are those of the peers that there are, oldest first.
func TestNodesOrder(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	r := rand.New(rand.NewPCG(1, 2))
	there := map[string]record{}
	some := func() *metav1.PartialObjectMetadata {
		i := r.IntN(40)
		n := flannelNode(i)
		n.UID, n.CreationTimestamp = types.UID(n.Name), metav1.Unix(int64(r.IntN(5)), 0)
		n.Annotations[note+"public-ip"] = fmt.Sprintf("192.0.2.%d", 1+r.IntN(9))
		if r.IntN(4) == 0 {
			delete(n.Annotations, note+"kube-subnet-manager")
		}
		c.podCIDRs.put(n.UID, n.Spec.PodCIDR)
		return metadataOf(n)
	}
	for step := range 2000 {
		switch n := some(); {
		case step%100 == 99:
			there = map[string]record{}
			list := map[string]any{}
			for range 30 {
				n := some()
				list[n.Name], there[n.Name] = n, c.known(&n.ObjectMeta)
			}
			must(t, c.Replace(slices.Collect(maps.Values(list)), "1"))
		case step%3 == 0:
			must(t, c.Delete(n))
			delete(there, n.Name)
		default:
			must(t, c.Update(n))
			there[n.Name] = c.known(&n.ObjectMeta)
		}
		var want []subnet.Lease
		for _, n := range slices.SortedFunc(maps.Values(there), record.compare) {
			if l, err := c.annotations.lease(n); err == nil && n.isPeer() {
				want = append(want, l)
			}
		}
		if leases, _, _ := c.peers(); !slices.EqualFunc(leases, want, subnet.Lease.Equal) {
			t.Fatalf("after %d steps got %v, want %v", step, leases, want)
		}
	}
}

// TestQueueBacksOff: a Node that had no podCIDR is read again, and less and less often.
func TestQueueBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, 0, pool4)
		defer c.queue.ShutDown()
		for _, want := range []time.Duration{leastWait, 2 * leastWait, 4 * leastWait, 4 * time.Second, 8 * time.Second,
			16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
			begin := time.Now()
			c.queue.AddRateLimited("node")
			c.queue.Done(first(c.queue.Get()))
			if took := time.Since(begin); took != want || leastWait != time.Second/2 {
				t.Errorf("it is read again after %s, want %s", took, want)
			}
		}
	})
}

func first(name string, _ bool) string { return name }

// TestNoPodCIDRIsNotKnown: a Node that has none yet may get one.
func TestNoPodCIDRIsNotKnown(t *testing.T) {
	var p podCIDRs
	p.put("uid", "")
	if !p.empty() {
		t.Errorf("%v is known of a Node without podCIDRs", p.byUID)
	}
	p.put("uid", "10.244.1.0/24")
	if p.empty() || p.get("uid") != "10.244.1.0/24" {
		t.Errorf("known is %v", p.byUID)
	}
}

// TestUnread: a peer whose podCIDRs have not been read yet is neither a lease nor left out; one that has none is left out,
// and is not read again because it changes.
func TestUnread(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	n := flannelNode(1)
	n.UID = "a"
	want := func(what string, leases, skips, queued int) {
		t.Helper()
		l, s, _ := c.peers()
		if len(l) != leases || len(s) != skips || c.queue.Len() != queued {
			t.Errorf("%s: %d leases, %d skips, %d to read; want %d, %d, %d", what, len(l), len(s), c.queue.Len(), leases, skips, queued)
		}
	}
	read := func() {
		t.Helper()
		if name, _ := c.queue.Get(); name != n.Name || !c.needed(name) {
			t.Fatalf("%q is to be read, needed %t", name, c.needed(name))
		}
		c.queue.Done(n.Name)
	}
	must(t, c.Update(metadataOf(n)))
	want("a stranger", 0, 0, 1)
	read()
	n.Annotations[note+"public-ip"] = "192.0.2.9"
	must(t, c.Update(metadataOf(n)))
	want("a stranger that changes while it is read", 0, 0, 0)
	if c.learned(n.Name) {
		t.Error("it is complete without a podCIDR")
	}
	want("read, without a podCIDR", 0, 1, 0)
	n.Annotations[note+"public-ip"] = "192.0.2.8"
	must(t, c.Update(metadataOf(n)))
	want("one without a podCIDR that changes", 0, 1, 0)
	c.queue.AddRateLimited(n.Name) // as it is for one without a podCIDR
	n.UID = "b"
	must(t, c.Update(metadataOf(n)))
	want("another Node of that name", 0, 0, 1)
	if tries := c.queue.NumRequeues(n.Name); tries != 0 {
		t.Errorf("another Node of that name waits as if it had been read %d times", tries)
	}
	read()
	c.podCIDRs.put("b", "10.244.1.0/24")
	must(t, c.Update(metadataOf(n)))
	want("one whose podCIDR somebody else read", 1, 0, 0)
	if c.needed(n.Name) || !c.needed(self) || c.needed("gone") || !c.learned(n.Name) || !c.learned("gone") {
		t.Error("what is known is read again, or this node's own Node is not")
	}
	delete(n.Annotations, note+"kube-subnet-manager")
	must(t, c.Update(metadataOf(n)))
	n.UID = "c"
	must(t, c.Update(metadataOf(n)))
	want("one that is no peer", 0, 0, 0)
	n.Annotations[note+"kube-subnet-manager"] = "true"
	must(t, c.Update(metadataOf(n)))
	want("one that becomes a peer", 0, 0, 1)
}

// TestNotified: who depends on a Node hears of its changes, and of nothing else.
func TestNotified(t *testing.T) {
	c := cacheOf(t, 1, pool4)
	ownChanged := 0
	c.ownChanged = func() { ownChanged++ }
	version := 0
	want := func(what string, changed, own bool) {
		t.Helper()
		notified := len(c.changed) > 0
		if notified {
			<-c.changed
		}
		if notified != changed && !own || (ownChanged > 0) != own || (c.version > version) != (changed && !own) {
			t.Errorf("%s: notified %t, own %d, version %d after %d; want %t, %t", what, notified, ownChanged, c.version, version, changed, own)
		}
		version, ownChanged = c.version, 0
	}
	want("the first list", true, false)
	must(t, c.Replace(nil, "2"))
	want("a list without a peer that was there", true, false)
	n := flannelNode(7)
	n.UID = "a"
	c.podCIDRs.put("a", "10.244.7.0/24")
	must(t, c.Add(metadataOf(n)))
	want("a peer", true, false)
	must(t, c.Update(metadataOf(n)))
	want("its heartbeat", false, false)
	must(t, c.Delete(metadataOf(n)))
	want("it goes", true, false)
	if c.podCIDRs.get("a") != "" {
		t.Error("the podCIDRs of a Node that is gone are known")
	}
	must(t, c.Delete(metadataOf(n)))
	want("it goes again", false, false)
	must(t, c.Add(metadataOf(testNode("stranger"))))
	want("a node that is no peer", false, false)
	mine := &node{}
	mine.Name, mine.UID, mine.Spec.PodCIDR = self, "mine", "10.244.200.0/24"
	if _, ok := c.ownRecord(); ok {
		t.Error("the own Node is known before it was read")
	}
	for range 2 { // it may have said something else in between
		c.putOwn(mine)
		want("the own Node", true, true)
	}
	if r, ok := c.ownRecord(); !ok || r.podCIDRs != "10.244.200.0/24" || c.podCIDRs.get("mine") != "10.244.200.0/24" {
		t.Errorf("the own record is %+v, %t", r, ok)
	}
	c.podCIDRs.rewound("7")
	if c.UpdateResourceVersion("9"); c.podCIDRs.at() != "9" {
		t.Errorf("seen is revision %q, want 9", c.podCIDRs.at())
	}
}

// TestFirstList: with the first list the snapshot may be given, and this node's annotations compared.
func TestFirstList(t *testing.T) {
	s := &Store{annotations: newAnnotations(note, []subnet.Pool{pool4}), node: self, own: own{changed: make(chan struct{}, 1)}}
	c := s.newNodes()
	if c.inSync() {
		t.Error("it is in sync before the first list")
	}
	must(t, c.Replace(nil, "1"))
	if synced := c.inSync(); !synced || len(c.changed) != 1 || len(s.own.changed) != 1 {
		t.Errorf("after an empty list: in sync %t, notified %d and %d", synced, len(c.changed), len(s.own.changed))
	}
	<-c.changed
	if must(t, c.Replace(nil, "2")); len(c.changed) > 0 {
		t.Error("a second list that says the same is told of")
	}
	late := flannelNode(1)
	if must(t, c.Replace([]any{metadataOf(late), metadataOf(testNode(self))}, "3")); c.queue.NumRequeues(late.Name) != 1 || c.queue.NumRequeues(self) != 0 {
		t.Error("a peer without a podCIDR is not read later, or this node's own is")
	}
}

// TestOwnRead: this node's own Node is read a tenth of a second after a change, once for all in between.
func TestOwnRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, 0, pool4)
		defer c.queue.ShutDown()
		begin := time.Now()
		must(t, c.Update(metadataOf(testNode(self))))
		must(t, c.Update(metadataOf(testNode(self))))
		if name, _ := c.queue.Get(); name != self || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("%q is to be read after %s, want %q after 100ms", name, time.Since(begin), self)
		}
		c.queue.Done(self)
		time.Sleep(time.Second)
		if c.queue.Len() != 0 {
			t.Error("it is to be read twice")
		}
	})
}

// TestForgotten: a Node that has not to be read any more is not remembered.
func TestForgotten(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	s := &Store{node: self}
	c.queue.Add("gone")
	c.queue.AddRateLimited("gone")
	done := make(chan struct{})
	go func() { defer close(done); s.readQueued(t.Context(), c) }()
	testwait.Until(t, "it to be forgotten", func() bool { return c.queue.NumRequeues("gone") == 0 })
	c.queue.ShutDown()
	<-done
}

// TestTrim: only what records have is held of thousands of Nodes.
func TestTrim(t *testing.T) {
	n := evilNode(20)
	n.Annotations["other/annotation"] = "large"
	a := newAnnotations(note, []subnet.Pool{pool4})
	want := a.record(&n.ObjectMeta)
	a.trim(&n.ObjectMeta)
	if a.record(&n.ObjectMeta) != want || len(n.Annotations) != 4 || n.ManagedFields != nil || n.Labels != nil || n.OwnerReferences != nil || n.Finalizers != nil {
		t.Errorf("left are %+v", n.ObjectMeta)
	}
}
