package announce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/announce/message"
	"github.com/twill-net/twill/policy/policytest"
)

// cluster is a Source that does what a test says, with an announce.Source around it and who follows that.
type cluster struct {
	*testing.T
	*Source
	from policytest.Source
	snap policy.Snapshot

	taking sync.Mutex
	told   map[*policy.Pod]bool // the changes, replayed
	calls  int
	seen   func(policy.Change)
}

// newCluster returns one that has told nothing yet.
func newCluster(t *testing.T, pods ...*policy.Pod) *cluster {
	t.Helper()
	c := &cluster{T: t, snap: policy.Snapshot{Pods: pods}}
	c.Source = NewSource(&c.from, "node1")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Watch(ended, c.take); err != nil {
		t.Fatal(err)
	}
	return c
}

// started returns a cluster that has told its pods.
func started(t *testing.T, pods ...*policy.Pod) *cluster {
	t.Helper()
	c := newCluster(t, pods...)
	c.rules()
	return c
}

// take takes what there is at once.
func (c *cluster) take() {
	c.Helper()
	c.taking.Lock()
	defer c.taking.Unlock()
	if change, ok := c.Take(); ok {
		c.replay(change)
	}
}

// replay follows the changes, and fails if one begins with what was not told.
func (c *cluster) replay(change policy.Change) {
	c.Helper()
	c.calls++
	if c.told == nil {
		if !change.Rules || len(change.Pods) > 0 {
			c.Errorf("the first change has %d pods, and rules %v", len(change.Pods), change.Rules)
		}
		c.told = map[*policy.Pod]bool{}
		for _, p := range selectable(change.Snapshot()) {
			c.told[p] = true
		}
	}
	for _, one := range change.Pods {
		if one.Was != nil && !c.told[one.Was] {
			c.Errorf("%v → %v: the first was not told", one.Was, one.Now)
		}
		if delete(c.told, one.Was); one.Now != nil {
			c.told[one.Now] = true
		}
	}
	if c.seen != nil {
		c.seen(change)
	}
}

func selectable(s policy.Snapshot) []*policy.Pod {
	return slices.DeleteFunc(s.Pods, func(p *policy.Pod) bool { return !(policy.Endpoint{Pod: p}).Selectable() })
}

// rules tells everything.
func (c *cluster) rules() {
	s := c.snap
	c.from.Put(policy.Change{Rules: true, Snapshot: func() policy.Snapshot { return s }})
}

// set puts a pod in place of another. Either may be nil.
func (c *cluster) set(was, now *policy.Pod) *policy.Pod {
	c.snap.Pods = slices.DeleteFunc(slices.Clone(c.snap.Pods), func(p *policy.Pod) bool { return p == was })
	var change policy.PodChange
	if now != nil {
		c.snap.Pods = append(c.snap.Pods, now)
	}
	if (policy.Endpoint{Pod: was}).Selectable() {
		change.Was = was
	}
	if (policy.Endpoint{Pod: now}).Selectable() {
		change.Now = now
	}
	s := c.snap
	if change.Was != nil || change.Now != nil {
		c.from.Put(policy.Change{Pods: []policy.PodChange{change}, Snapshot: func() policy.Snapshot { return s }})
	}
	return now
}

// alter puts an altered copy in place of a pod.
func (c *cluster) alter(p *policy.Pod, alter func(*policy.Pod)) *policy.Pod {
	q := *p
	alter(&q)
	return c.set(p, &q)
}

// report makes the API server report addresses of a pod.
func (c *cluster) report(p *policy.Pod, addrs ...netip.Addr) *policy.Pod {
	return c.alter(p, func(p *policy.Pod) { p.Addrs = addrs })
}

// addrs returns the addresses that a pod has by the snapshot.
func (c *cluster) addrs(p *policy.Pod) []netip.Addr {
	for _, own := range c.Snapshot().Pods {
		if own.UID == p.UID && own.String() == p.String() {
			return own.Addrs
		}
	}
	return nil
}

// check fails unless what was told is what the snapshot has.
func (c *cluster) check(what string) {
	c.Helper()
	now := selectable(c.Snapshot())
	for _, p := range now {
		if !c.told[p] {
			c.Errorf("%s: the snapshot has %v with %v, which was not told", what, p, p.Addrs)
		}
	}
	if len(now) != len(c.told) {
		c.Errorf("%s: the snapshot has %d pods, %d were told", what, len(now), len(c.told))
	}
}

// has fails unless a pod has these addresses.
func (c *cluster) has(what string, p *policy.Pod, want ...netip.Addr) {
	c.Helper()
	c.check(what)
	if got := c.addrs(p); !slices.Equal(got, want) {
		c.Errorf("%s: %s has %v, want %v", what, p, got, want)
	}
}

var x, y, z, x6 = netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.1.4"),
	netip.MustParseAddr("fd00:10:244:1::2")

func newPod(name, uid string, addrs ...netip.Addr) *policy.Pod {
	return &policy.Pod{Namespace: "default", Name: name, UID: uid, Node: "node1", Addrs: addrs}
}

func about(p *policy.Pod, addrs ...netip.Addr) message.Pod {
	return message.Pod{Version: message.Version, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Addresses: addrs}
}

func isClosed(known <-chan struct{}) bool {
	select {
	case <-known:
		return true
	default:
		return false
	}
}

// TestLife: a pod has its announced addresses until the API server reports any, and none after DEL.
func TestLife(t *testing.T) {
	p := newPod("web", "u-1")
	c := started(t, p)
	if !isClosed(c.Add(about(p, x, x6))) {
		t.Error("the announcement of a pod that is known waits")
	}
	c.has("after ADD", p, x, x6)
	p = c.alter(p, func(p *policy.Pod) { p.Labels = labels.Set{"app": "web"} })
	c.has("after other labels", p, x, x6)
	calls := c.calls
	p = c.report(p, x, x6)
	c.has("after the same was reported", p, x, x6)
	if c.calls != calls {
		t.Error("the same addresses were told again")
	}
	p = c.report(p, x)
	c.has("after one was reported", p, x, x6)
	c.Remove(about(p, x, x6))
	c.has("after DEL", p)
	p = c.report(p, x, x6)
	c.has("after a late report", p)
	p = c.report(p, y)
	c.has("after a report of another address", p, y)
	c.set(p, nil)
	c.has("after it was deleted", p)
	if len(c.pods) > 0 {
		t.Error("a pod that is gone is kept")
	}
}

// TestNewSandbox: the pod's containers start again, with another address, and the API server still reports the one before.
func TestNewSandbox(t *testing.T) {
	for name, deleted := range map[string]bool{"after DEL": true, "when DEL was not told": false} {
		t.Run(name, func(t *testing.T) {
			p := newPod("web", "u-1")
			c := started(t, p)
			c.Add(about(p, x))
			p = c.report(p, x)
			if deleted {
				c.Remove(about(p, x))
			}
			c.Add(about(p, y))
			c.has("after ADD", p, y)
			p = c.alter(p, func(p *policy.Pod) { p.Labels = labels.Set{"app": "web"} })
			c.has("after a report of the old one", p, y)
			p = c.report(p, y)
			c.has("after a report of the new one", p, y)
			c.Remove(about(p, x))
			c.has("after another DEL of the old one", p, y)
			c.Add(about(p, x))
			c.has("after ADD with the old one", p, x)
		})
	}
}

// TestManySandboxes: what a pod has given back is bounded, and the last one is not forgotten.
func TestManySandboxes(t *testing.T) {
	p := newPod("web", "u-1")
	c := started(t, p)
	addr := x
	for range 5 * mostGone {
		addr = addr.Next()
		c.Add(about(p, addr))
		c.Remove(about(p, addr))
	}
	p = c.report(p, addr)
	c.has("after DEL", p)
	if n := len(c.pods[p.UID].gone); n > mostGone {
		t.Errorf("%d addresses are remembered", n)
	}
}

// TestReuse: an address belongs to the pod that was started with it last, however old that is.
func TestReuse(t *testing.T) {
	old, young := newPod("old", "u-1"), newPod("young", "u-2", x)
	young.Created = time.Unix(1000, 0)
	c := started(t, old, young)
	c.Add(about(old, x))
	c.has("after ADD", old, x)
	c.has("after ADD", young)
	young = c.alter(young, func(p *policy.Pod) { p.Labels = labels.Set{"app": "web"} })
	c.has("after another report", young)
	c.Add(about(young, x, x6))
	c.has("after ADD of the other one", old)
	c.has("after ADD of the other one", young, x, x6)
}

// TestEarly: an announcement waits for its pod, unless it is taken back.
func TestEarly(t *testing.T) {
	p, other := newPod("web", "u-1"), newPod("db", "u-2")
	for name, test := range map[string]struct {
		between func(*cluster)
		want    []netip.Addr
		wait    bool
	}{
		"nothing":         {func(*cluster) {}, []netip.Addr{x}, false},
		"DEL":             {func(c *cluster) { c.Remove(about(p, x)) }, nil, true},
		"DEL of another":  {func(c *cluster) { c.Remove(about(p, y)) }, []netip.Addr{x}, false},
		"another pod":     {func(c *cluster) { c.set(nil, other) }, []netip.Addr{x}, false},
		"reuse":           {func(c *cluster) { c.Add(about(other, x)) }, nil, true},
		"the same again":  {func(c *cluster) { c.Add(about(p, y)) }, []netip.Addr{y}, true},
		"a minute":        {func(c *cluster) { c.Add(about(other, z)) }, nil, true},
		"a reported one":  {func(c *cluster) { p := c.set(nil, newPod("web", "u-1", z)); c.set(p, nil) }, nil, false},
		"the start":       {func(c *cluster) { c.rules() }, []netip.Addr{x}, false},
		"one of its name": {func(c *cluster) { c.set(c.set(nil, newPod("web", "u-0")), nil) }, []netip.Addr{x}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				if name != "the start" {
					c.rules()
				}
				known := c.Add(about(p, x))
				if isClosed(known) {
					t.Error("the pod is not known yet")
				}
				if name == "a minute" {
					time.Sleep(2 * forgetAfter)
				}
				test.between(c)
				c.set(nil, p)
				c.has("when the pod is known", p, test.want...)
				if isClosed(known) == test.wait {
					t.Errorf("the announcement waits: %v", test.wait)
				}
			})
		})
	}
}

// TestScheduled: an announcement waits until its pod has a node.
func TestScheduled(t *testing.T) {
	p := newPod("web", "u-1")
	p.Node = ""
	c := started(t, p)
	known := c.Add(about(p, x))
	if isClosed(known) {
		t.Error("the pod is not known to be here yet")
	}
	p = c.alter(p, func(p *policy.Pod) { p.Node = "node1" })
	c.has("when it has a node", p, x)
	if !isClosed(known) {
		t.Error("the announcement waits")
	}
}

// TestAtStart: an announcement may come before anything else.
func TestAtStart(t *testing.T) {
	p := newPod("web", "u-1")
	c := newCluster(t, p)
	known := c.Add(about(p, x))
	c.Remove(about(p, y))
	if isClosed(known) {
		t.Error("the announcement does not wait for the source")
	}
	c.rules()
	c.has("at the start", p, x)
	if !isClosed(known) {
		t.Error("the announcement waits")
	}
}

// TestUnknownUID: manifests have no UIDs, and old runtimes tell none.
func TestUnknownUID(t *testing.T) {
	for _, uids := range [][2]string{{"", ""}, {"u-1", ""}, {"", "u-1"}} {
		p, m := newPod("web", uids[0]), about(newPod("web", uids[1]), x)
		c := started(t, p, newPod("web2", ""))
		if !isClosed(c.Add(m)) {
			t.Errorf("%q: the announcement waits", uids)
		}
		c.has(fmt.Sprintf("%q", uids), p, x)
	}
	p := newPod("web", "u-1")
	c := started(t, p)
	if isClosed(c.Add(about(newPod("web", "u-2"), x))) {
		t.Error("an announcement of another pod of this name does not wait")
	}
	c.has("after another pod's ADD", p)
}

// TestOtherPods: what is on other nodes, has ended or is in the host's network is passed on as it is.
func TestOtherPods(t *testing.T) {
	remote, ended, host := newPod("remote", "u-1", x), newPod("ended", "u-2", x), newPod("host", "u-3", x)
	remote.Node, ended.Ended, host.HostNetwork = "node2", true, true
	p := newPod("web", "u-4")
	c := started(t, remote, ended, host, p)
	c.Add(about(p, x))
	for _, p := range []*policy.Pod{remote, ended, host, p} {
		c.has("after ADD", p, x)
		c.Add(about(p, y))
	}
	p = c.alter(p, func(p *policy.Pod) { p.Ended = true })
	c.has("when it has ended", p)
}
