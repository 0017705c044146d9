package enforce

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate/conntrack"
	"github.com/twill-net/twill/policy"
)

// fakeConnections is one connection.
type fakeConnections struct {
	mu     sync.Mutex
	one    conntrack.Connection
	marked bool
	looks  int
	fail   error
}

func (c *fakeConnections) Mark(denied func(conntrack.Connection) bool) (marked int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.looks++; c.fail != nil || !c.one.From.IsValid() {
		return 0, c.fail
	}
	was := c.marked
	if c.marked = denied(c.one); c.marked && !was {
		marked++
	}
	return marked, nil
}

// is checks whether the connection is marked, and how often all were looked at since the last time.
func (c *fakeConnections) is(t *testing.T, what string, marked bool, looks int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.marked != marked || c.looks != looks {
		t.Errorf("%s: marked %v after %d looks, want %v after %d", what, c.marked, c.looks, marked, looks)
	}
	c.looks = 0
}

// TestConnections: an open connection is marked when policies come to deny it, and is not any more when they allow it; and
// nobody looks for connections when nothing can have been denied.
func TestConnections(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		pod := func(node int) *policy.Pod {
			for _, p := range r.snap.Pods {
				if p.Node == r.world.Site(node).Node && (policy.Endpoint{Pod: p}).Selectable() && len(p.Addrs) > 0 {
					return p
				}
			}
			r.Fatal("no pod on node", node)
			return nil
		}
		from, to := pod(2), pod(1)
		i := 0
		for to.Addrs[0].Is4() != from.Addrs[i].Is4() {
			i++
		}
		r.tracks.one = conntrack.Connection{From: netip.AddrPortFrom(from.Addrs[i], 4000), To: netip.AddrPortFrom(to.Addrs[0], 80), Protocol: 6}
		r.snap.Policies, r.snap.ClusterPolicies = nil, nil
		r.protect()
		if r.Judged() == nil {
			r.Error("connections are judged before there is a table")
		}
		r.sync()
		r.tracks.is(t, "at the start, and when nothing is in doubt any more", false, 2)
		if err := r.Judged(); err != nil {
			r.Error(err)
		}
		deny := policy.NetworkPolicy{}
		deny.Name, deny.Namespace = "deny", to.Namespace
		r.snap.Policies = []policy.NetworkPolicy{deny}
		r.sync()
		r.tracks.is(t, "denied", true, 1)
		come := *from
		come.Name, come.UID, come.Addrs = "new", "new", []netip.Addr{netip.MustParseAddr("10.244.2.222")}
		r.snap.Pods = append(r.snap.Pods, &come)
		r.tell(policy.Change{Pods: []policy.PodChange{{Now: &come}}})
		r.tracks.is(t, "a pod has come", true, 0)
		r.tracks.fail = errors.New("no buffer space")
		r.snap.Policies = nil
		r.sync()
		time.Sleep(2500 * time.Millisecond)
		if err := r.Judged(); err == nil || err.Error() != "no buffer space" {
			r.Errorf("while connections cannot be read: %v", err)
		}
		r.tracks.mu.Lock()
		if r.tracks.fail = nil; r.tracks.looks < 3 || r.tracks.looks > 4 {
			r.Errorf("%d looks in three seconds, want one a second", r.tracks.looks)
		}
		r.tracks.looks = 0
		r.tracks.mu.Unlock()
		r.settle()
		r.tracks.is(t, "allowed again", false, 1)
		if err := r.Judged(); err != nil {
			r.Error(err)
		}
	})
}
