package enforce

import (
	"errors"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/netstate/conntrack"
	"github.com/twill-net/twill/policy"
)

// fakeConnections are some connections.
type fakeConnections struct {
	mu    sync.Mutex
	all   []conntrack.Connection
	looks int
	fail  error
}

func (c *fakeConnections) Each(f func(conntrack.Connection)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	for _, one := range c.all {
		f(one)
	}
	return c.fail
}

func (c *fakeConnections) set(fail error, all ...conntrack.Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all, c.fail = all, fail
}

// denies checks at which of two pods connections are denied, and how often all were looked at since the last time.
func (r *run) denies(what string, looks int, pods ...netip.Addr) {
	r.Helper()
	want := map[netip.Addr]bool{}
	for _, a := range pods {
		want[a] = true
	}
	got, err := r.Denied()
	r.tracks.mu.Lock()
	defer r.tracks.mu.Unlock()
	if err != nil || !maps.Equal(got, want) || r.tracks.looks != looks {
		r.Errorf("%s: denied at %v after %d looks, want %v after %d; %v", what, got, r.tracks.looks, want, looks, err)
	}
	r.tracks.looks = 0
}

// told reports whether the change of what is denied was told.
func (r *run) told() bool {
	select {
	case <-r.DeniedChanged():
		return true
	default:
		return false
	}
}

// TestConnections: the pod of the node is told of which policies come to deny an open connection, and not any more when they
// allow it or when the connection has ended; and nobody looks for connections when nothing can have been denied.
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
		one := conntrack.Connection{From: netip.AddrPortFrom(from.Addrs[i], 4000), To: netip.AddrPortFrom(to.Addrs[0], 80), Protocol: 6}
		r.tracks.set(nil, one)
		r.snap.Policies, r.snap.ClusterPolicies = nil, nil
		r.protect()
		if _, err := r.Denied(); err == nil {
			r.Error("connections are judged before there is a table")
		}
		r.sync()
		r.denies("at the start, and when nothing is in doubt any more", 2)
		if !r.told() {
			r.Error("it is not told that connections are judged")
		}
		deny := policy.NetworkPolicy{}
		deny.Name, deny.Namespace = "deny", to.Namespace
		r.snap.Policies = []policy.NetworkPolicy{deny}
		r.sync()
		r.denies("denied", 1, to.Addrs[0])
		if !r.told() {
			r.Error("it is not told that one is denied")
		}
		come := *from
		come.Name, come.UID, come.Addrs = "new", "new", []netip.Addr{netip.MustParseAddr("10.244.2.222")}
		r.snap.Pods = append(r.snap.Pods, &come)
		r.tell(policy.Change{Pods: []policy.PodChange{{Now: &come}}})
		r.denies("a pod has come", 0, to.Addrs[0])
		time.Sleep(2 * lookAgain)
		synctest.Wait()
		r.denies("it goes on", 2, to.Addrs[0])
		if r.told() {
			r.Error("something is told although nothing has changed")
		}
		r.refusesConnections(one)
		r.snap.Policies = []policy.NetworkPolicy{deny}
		r.sync()
		r.denies("denied again", 1, to.Addrs[0])
		r.tracks.set(nil)
		time.Sleep(lookAgain)
		r.settle()
		r.denies("it has ended", 1)
		time.Sleep(2 * lookAgain)
		r.denies("nothing is denied", 0)
	})
}

// refusesConnections has the kernel refuse to tell of connections for a while, in which policies allow one again.
func (r *run) refusesConnections(one conntrack.Connection) {
	r.Helper()
	r.tracks.set(errors.New("no buffer space"), one)
	r.snap.Policies = nil
	r.sync()
	time.Sleep(2500 * time.Millisecond)
	if _, err := r.Denied(); err == nil || err.Error() != "no buffer space" {
		r.Errorf("while connections cannot be read: %v", err)
	}
	r.tracks.set(nil, one)
	r.tracks.mu.Lock()
	if r.tracks.looks < 3 || r.tracks.looks > 4 {
		r.Errorf("%d looks in three seconds, want one a second", r.tracks.looks)
	}
	r.tracks.looks = 0
	r.tracks.mu.Unlock()
	r.settle()
	r.denies("allowed again", 1)
	if !r.told() {
		r.Error("it is not told that nothing is denied any more")
	}
}
