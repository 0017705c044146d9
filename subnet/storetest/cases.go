package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// cases are the clauses of the contract, each on a cluster of its own.
var cases = []struct {
	name string
	run  func(cluster)
}{
	{"acquire is within the network", acquireWithin},
	{"acquire again gives the same subnet", acquireAgain},
	{"two nodes get different subnets", acquireTwo},
	{"twenty nodes at once get different subnets", acquireMany},
	{"acquire honours its context", acquireContext},
	{"what is excluded is in no lease", acquireExcluded},
	{"subnets of before, of which a node still has pods, are nobody's new ones", acquireEarlier},
	{"a lease that moves names its subnet of before at once", acquireMoved},
	{"a lease stays that the pools would not give any more: longer subnets", held(longer)},
	{"a lease stays that the pools would not give any more: another range", held(upper)},
	{"a lease stays that the pools would not give any more: a smaller network", held(halved)},
	{"last is what was acquired", last},
	{"the first snapshot is complete", firstSnapshot},
	{"a watcher without a lease sees the others", reader},
	{"a watcher sees what is published again", republish},
	{"a watcher sees joins and leaves", joinLeave},
	{"a malformed record is skipped", malformed},
	{"the own record is published again after it was deleted", ownDeleted},
	{"the own record is published again after it was altered", ownAltered},
	{"the own record is published again after it was damaged", ownDamaged},
	{"an outage changes nothing", outage},
	{"acquire waits for the end of an outage", acquireOutage},
}

func acquireWithin(c cluster) {
	want := c.lease(1)
	got := c.acquire(c.store(want), want)
	if got.Node != want.Node || got.Backend != want.Backend || len(got.Stacks) != len(c.pools) {
		c.t.Fatalf("got lease %+v, want one like %+v", got, want)
	}
	for i, s := range got.Stacks {
		w := want.Stacks[i]
		if !c.pools[i].Contains(s.Subnet) || s.Underlay != w.Underlay || string(s.Data) != string(w.Data) {
			c.t.Errorf("got stack %+v, want %+v with a subnet of %s", s, w, c.pools[i].Network)
		}
	}
}

func acquireAgain(c cluster) {
	want := c.lease(1)
	store := c.store(want)
	first := c.acquire(store, want)
	c.same(first, c.acquire(store, want))
	c.same(first, c.acquire(store, first))
	c.same(first, c.acquire(c.store(want), want)) // the agent was restarted and remembers nothing
	c.same(first, c.acquire(c.store(want), first))
}

func acquireTwo(c cluster) {
	a, b := c.join(1), c.join(2)
	for i := range a.Stacks {
		if a.Stacks[i].Subnet.Overlaps(b.Stacks[i].Subnet) {
			c.t.Errorf("two nodes have %s and %s", a.Stacks[i].Subnet, b.Stacks[i].Subnet)
		}
	}
}

func acquireMany(c cluster) {
	const nodes = 20
	leases, errs := make([]subnet.Lease, nodes), make([]error, nodes)
	var group sync.WaitGroup
	for i := range nodes {
		want := c.lease(i)
		store := c.store(want)
		group.Go(func() { leases[i], errs[i] = store.Acquire(c.ctx(), want) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
	for i, a := range leases {
		for _, b := range leases[:i] {
			for k := range a.Stacks {
				if a.Stacks[k].Subnet.Overlaps(b.Stacks[k].Subnet) {
					c.t.Errorf("%s and %s both have %s", a.Node, b.Node, a.Stacks[k].Subnet)
				}
			}
		}
	}
	snapshot := c.watch(leases[0]).until("all peers", func(s subnet.Snapshot) bool { return len(s.Peers) == nodes-1 })
	for _, l := range leases[1:] {
		c.same(l, peer(snapshot, l.Node))
	}
}

func acquireContext(c cluster) {
	want := c.lease(1)
	ctx, cancel := context.WithCancel(c.ctx())
	cancel()
	if _, err := c.store(want).Acquire(ctx, want); !errors.Is(err, context.Canceled) {
		c.t.Errorf("got %v, want context.Canceled", err)
	}
}

// acquireExcluded: a store that chooses subnets takes others; one that is told them waits, publishes nothing, and says why.
func acquireExcluded(c cluster) {
	want := c.lease(1)
	first := c.acquire(c.store(want), want)
	c.harness.Delete(c.t, first)
	store := c.store(want)
	excluder := store.(subnet.Excluder)
	list := []subnet.Foreign{{Prefix: netstate.Host(first.Stacks[0].Subnet.Addr().Next()), What: "this node's own address on lan0"}}
	excluder.Exclude(list)
	ctx, cancel := context.WithTimeout(c.ctx(), 2*time.Second)
	defer cancel()
	got, err := store.Acquire(ctx, first)
	switch {
	case err != nil && !strings.Contains(err.Error(), "this node's own address on lan0"):
		c.t.Errorf("acquire says %v, want what is in the way", err)
	case got.Holds(list[0]):
		c.t.Errorf("got %+v, which contains %v", got, list)
	}
	if _, published, _ := c.store(want).Last(c.ctx(), want); err != nil && published {
		c.t.Error("a lease that cannot be used was published")
	}
	excluder.Exclude(nil)
	again := c.acquire(store, first)
	if err != nil {
		c.same(first, again)
	}
}

// acquireEarlier: a store that chooses subnets leaves those out that a record names as earlier ones, whoever wishes for them, until
// the record names them no more. Where podCIDRs are given, the earlier subnet loses.
func acquireEarlier(c cluster) {
	holder := c.lease(0)
	store := c.store(holder)
	if l, ok := store.(subnet.Lessor); !ok || !l.Leases() {
		return
	}
	var earlier []netip.Prefix
	for i, p := range c.pools {
		holder.Stacks[i].Subnet = p.Subnet(3)
		earlier = append(earlier, p.Subnet(uint64(5+i)), p.Subnet(9))
	}
	for i, s := range holder.Stacks {
		holder.Stacks[i] = s.WithEarlier(earlier)
	}
	c.same(holder, c.acquire(store, holder))
	const free = 32 - 1 - 2 // subnets
	for n := 1; n <= free; n++ {
		want := c.lease(n)
		for i, p := range c.pools {
			want.Stacks[i].Subnet = p.Subnet(9) // what it had once, or a wish
		}
		for _, s := range c.acquire(c.store(want), want).Stacks {
			if slices.ContainsFunc(earlier, s.Subnet.Overlaps) {
				c.t.Fatalf("%s has %s, which is an earlier subnet of %s", want.Node, s.Subnet, holder.Node)
			}
		}
	}
	late := c.lease(free + 1)
	if got, err := c.store(late).Acquire(c.ctx(), late); err == nil || !strings.Contains(err.Error(), "all 32 subnets") {
		c.t.Errorf("with no other subnet left: got %+v, %v, want that all are in use", got, err)
	}
	for i, s := range holder.Stacks {
		holder.Stacks[i] = s.WithEarlier(nil)
	}
	c.acquire(store, holder)
	c.acquire(c.store(late), late)
}

// acquireMoved: peers never see the record of a node without the subnet that its pods have. A store whose subnets cannot
// move says why.
func acquireMoved(c cluster) {
	want := c.lease(1)
	before := c.acquire(c.store(want), want)
	store := c.store(want)
	if l, ok := store.(subnet.Lessor); !ok || !l.Leases() {
		return
	}
	var list []subnet.Foreign
	for _, s := range before.Stacks {
		list = append(list, subnet.Foreign{Prefix: netstate.Host(s.Subnet.Addr().Next()), What: "this node's own address on lan0"})
	}
	store.(subnet.Excluder).Exclude(list)
	ctx, cancel := context.WithTimeout(c.ctx(), 2*time.Second)
	defer cancel()
	got, err := store.Acquire(ctx, want)
	if err != nil {
		if !strings.Contains(err.Error(), list[0].What) {
			c.t.Errorf("acquire says %v, want what is in the way", err)
		}
		return
	}
	published, _, err := c.store(want).Last(c.ctx(), want)
	if err != nil {
		c.t.Fatal(err)
	}
	c.same(got, published)
	for i, s := range published.Stacks {
		if was := before.Stacks[i].Subnet; s.Subnet == was || !slices.Equal(s.Earlier(), []netip.Prefix{was}) {
			c.t.Errorf("moved from %s to %s: the earlier subnets are %s", was, s.Subnet, s.Earlier())
		}
	}
}

// longer returns the pool with subnets that are longer by two bits.
func longer(p subnet.Pool) subnet.Pool {
	p.SubnetLen += 2
	return p
}

// upper returns the second half of a pool.
func upper(p subnet.Pool) subnet.Pool {
	p.Min = p.Subnet(p.Count() / 2).Addr()
	return p
}

// halved returns the pool on the first half of its network, with longer subnets in the second half of that.
func halved(p subnet.Pool) subnet.Pool {
	p.Max = p.Subnet(p.Count()/2 - 1).Addr()
	p.Network = netip.PrefixFrom(p.Network.Addr(), p.Network.Bits()+1)
	return upper(longer(p))
}

// held returns a case: the pools are for new leases. Pods run in those that nodes hold, which stay as long as the networks
// have them, also when a record is lost; a new node gets what the pools give now, beside them.
func held(narrow func(subnet.Pool) subnet.Pool) func(cluster) {
	return func(c cluster) { c.holds(narrow) }
}

func (c cluster) holds(narrow func(subnet.Pool) subnet.Pool) {
	var held []subnet.Lease
	for i := range 2 {
		want := c.lease(i)
		for k, p := range c.pools {
			want.Stacks[k].Subnet = p.Subnet(uint64(2 + i))
		}
		held = append(held, c.acquire(c.store(want), want))
	}
	var pools []subnet.Pool
	for _, p := range c.pools {
		pools = append(pools, narrow(p))
	}
	c.harness.Configure(c.t, pools)
	for i, l := range held {
		c.same(l, c.acquire(c.store(l), c.lease(i))) // the agent remembers nothing
		c.same(l, c.acquire(c.store(l), l))
	}
	c.harness.Delete(c.t, held[0])
	c.same(held[0], c.acquire(c.store(held[0]), held[0])) // only the agent remembers
	added := c.join(2)
	for i, s := range added.Stacks {
		if !pools[i].Contains(s.Subnet) {
			c.t.Errorf("a new node has %s, want a subnet of %+v", s.Subnet, pools[i])
		}
	}
	if c.t.Failed() {
		return // no watcher sees what was not published
	}
	w := c.watch(added)
	for _, l := range held {
		w.sees(l)
	}
}

func last(c cluster) {
	want := c.lease(1)
	if l, ok, err := c.store(want).Last(c.ctx(), want); ok || err != nil {
		c.t.Fatalf("before the node acquired anything: got %+v %t %v", l, ok, err)
	}
	first := c.acquire(c.store(want), want)
	c.join(2)
	l, ok, err := c.store(want).Last(c.ctx(), want)
	if !ok || err != nil {
		c.t.Fatalf("after the node acquired %+v: got %t %v", first, ok, err)
	}
	c.same(first, l)
	stranger := c.lease(3)
	if l, ok, err := c.store(stranger).Last(c.ctx(), stranger); ok || err != nil {
		c.t.Errorf("another node: got %+v %t %v", l, ok, err)
	}
}

func firstSnapshot(c cluster) {
	want := c.lease(9)
	store := c.store(want)
	local := c.acquire(store, want)
	var peers []subnet.Lease
	for i := range 5 {
		peers = append(peers, c.join(i))
	}
	w := c.watchStore(store)
	snapshot := w.until("the first snapshot", func(subnet.Snapshot) bool { return true })
	c.same(local, snapshot.Local)
	if !slices.EqualFunc(snapshot.Peers, peers, subnet.Lease.Equal) {
		c.t.Errorf("got peers\n%+v\nwant, oldest first,\n%+v", snapshot.Peers, peers)
	}
	if len(snapshot.Skips) > 0 {
		c.t.Errorf("got skips %+v", snapshot.Skips)
	}
}

func reader(c cluster) {
	peers := []subnet.Lease{c.join(1), c.join(2)}
	s := c.watchStore(c.store(c.lease(3))).until("two peers", func(s subnet.Snapshot) bool { return len(s.Peers) == 2 })
	for _, l := range peers {
		c.same(l, peer(s, l.Node))
	}
	if len(s.Local.Stacks) > 0 {
		c.t.Errorf("got the local lease %+v, and nothing was acquired", s.Local)
	}
}

func republish(c cluster) {
	w := c.watch(c.join(1))
	want := c.lease(2)
	store := c.store(want)
	before := c.acquire(store, want)
	w.sees(before)
	changed := c.lease(2)
	for i := range changed.Stacks {
		changed.Stacks[i].Underlay = c.lease(102).Stacks[i].Underlay
		changed.Stacks[i].Data = json.RawMessage(`{"VNI":1,"VtepMAC":"aa:bb:cc:00:11:22"}`)
	}
	after := c.acquire(store, changed)
	for i := range after.Stacks {
		if after.Stacks[i].Subnet != before.Stacks[i].Subnet {
			c.t.Errorf("the subnet became %s, it was %s", after.Stacks[i].Subnet, before.Stacks[i].Subnet)
		}
	}
	w.sees(after)
	own := c.watchStore(store)
	again := c.acquire(store, before)
	own.until("the local lease as it is now", func(s subnet.Snapshot) bool { return s.Local.Equal(again) })
}

func joinLeave(c cluster) {
	a, b := c.join(1), c.join(2)
	w := c.watch(a)
	w.sees(b)
	d := c.join(3)
	w.sees(d)
	c.harness.Leave(c.t, b)
	s := w.until("peer "+b.Node+" gone", func(s subnet.Snapshot) bool { return peer(s, b.Node).Node == "" })
	c.same(d, peer(s, d.Node))
	c.same(a, s.Local)
	w.sees(c.join(2))
}

func malformed(c cluster) {
	a, b := c.join(1), c.join(2)
	want := c.lease(3)
	store := c.store(want)
	bad := c.acquire(store, want)
	w := c.watch(a)
	w.sees(bad)
	name := c.harness.Damage(c.t, bad)
	s := w.until("a skip named "+name, func(s subnet.Snapshot) bool { return skipped(s, name) })
	c.same(b, peer(s, b.Node))
	c.same(a, s.Local)
	if p := peer(s, bad.Node); p.Node != "" {
		c.t.Errorf("the damaged record is a peer: %+v", p)
	}
	w.sees(c.join(4)) // what comes later is not blocked either
	c.same(bad, c.acquire(store, want))
	s = w.sees(bad)
	if skipped(s, name) {
		c.t.Errorf("the record was mended, and is still skipped: %+v", s.Skips)
	}
}

func ownDeleted(c cluster) {
	c.ownRecord(func(l subnet.Lease) { c.harness.Delete(c.t, l) })
}

func ownAltered(c cluster) {
	c.ownRecord(func(l subnet.Lease) { c.harness.Alter(c.t, l) })
}

func ownDamaged(c cluster) {
	c.ownRecord(func(l subnet.Lease) { c.harness.Damage(c.t, l) })
}

// ownRecord checks that a watching node repairs its own record after do, twice, with the same subnet.
func (c cluster) ownRecord(do func(subnet.Lease)) {
	want := c.lease(1)
	store := c.store(want)
	l := c.acquire(store, want)
	own := c.watchStore(store)
	own.until("the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(l) })
	observer := c.join(2)
	for range 2 {
		do(l)
		c.watch(observer).sees(l) // a new watcher, so that it has not seen l before
		own.until("the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(l) })
	}
}

func outage(c cluster) {
	harness, ok := c.harness.(Outager)
	if !ok {
		return
	}
	a, b := c.join(1), c.join(2)
	w := c.watch(a)
	w.sees(b)
	harness.Outage(c.t, func() {
		w.quiet(time.Second, func(s subnet.Snapshot) bool { return peer(s, b.Node).Equal(b) && s.Local.Equal(a) })
	})
	w.sees(c.join(3))
	w.sees(b)
	c.harness.Leave(c.t, b)
	w.until("peer "+b.Node+" gone", func(s subnet.Snapshot) bool { return peer(s, b.Node).Node == "" })
}

func acquireOutage(c cluster) {
	harness, ok := c.harness.(Outager)
	if !ok {
		return
	}
	want := c.lease(1)
	store := c.store(want)
	var group sync.WaitGroup
	var got subnet.Lease
	var err error
	harness.Outage(c.t, func() {
		short, cancel := context.WithTimeout(c.ctx(), 500*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := store.Acquire(short, want)
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				c.t.Errorf("got %v, want context.DeadlineExceeded", err)
			}
		case <-time.After(testwait.Limit):
			c.t.Error("acquire does not end with its context")
		}
		group.Go(func() { got, err = store.Acquire(c.ctx(), want) })
	})
	group.Wait()
	if err != nil || len(got.Stacks) != len(c.pools) {
		c.t.Errorf("after the outage: got %+v %v", got, err)
	}
}
