package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// retry is how long the publisher waits after an error: from the first to the last, doubling.
const firstRetry, lastRetry = 100 * time.Millisecond, 10 * time.Second

// offer hands the newest facts to the publisher; older ones that it has not taken yet are dropped.
func (a *Agent) offer(node backend.Node) {
	select {
	case <-a.nodes:
	default:
	}
	a.nodes <- node
}

// keepLease acquires the node's lease, watches the store from then on, and publishes again when the node's
// facts change.
func (a *Agent) keepLease(ctx context.Context, group *errgroup.Group) error {
	node, ok := a.firstNode(ctx)
	if !ok || !a.prepare(ctx, node) {
		return nil
	}
	last := a.lastLease(ctx, node)
	lease, err := a.Store.Acquire(ctx, a.wanted(node, last))
	if err != nil {
		return ignoreDone(ctx, fmt.Errorf("lease a subnet for node %s: %w", a.Node, err))
	}
	a.Log.Info("leased", "node", a.Node, "lease", leaseText(lease))
	a.took(lease)
	group.Go(func() error { return a.watchStore(ctx) })
	for wait := firstRetry; ; {
		node, ok := a.nextNode(ctx)
		if !ok {
			return nil
		}
		want := a.wanted(node, lease)
		if want.Equal(lease) {
			continue
		}
		renewed, err := a.Store.Acquire(ctx, want)
		if err != nil {
			a.Log.Error("publish the lease", "node", a.Node, "err", err)
			wait = min(2*wait, lastRetry)
			time.AfterFunc(wait, a.kick)
			continue
		}
		lease, wait = renewed, firstRetry
		a.took(lease)
		a.Log.Info("published", "node", a.Node, "lease", leaseText(lease))
	}
}

// took tells the loop of the lease that the store has given.
func (a *Agent) took(lease subnet.Lease) {
	a.leased.Store(&lease)
	a.kick()
}

// askPause is how often the store is asked for the node's own addresses while there is no underlay, askLimit for how long.
const askPause, askLimit = 2 * time.Second, 3 * time.Second

// firstNode waits for an underlay. Nothing watches the store until then, so it is asked for the node's own addresses: a node
// may come back with others, and the cluster learn of them later than the agent starts.
func (a *Agent) firstNode(ctx context.Context) (backend.Node, bool) {
	tick := time.NewTicker(askPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return backend.Node{}, false
		case node := <-a.nodes:
			return node, true
		case <-tick.C:
			a.askNodeIPs(ctx)
		}
	}
}

// askNodeIPs tells the loop what the store knows of the node's own addresses now. No answer is no news.
func (a *Agent) askNodeIPs(ctx context.Context) {
	l, ok := a.Store.(subnet.Locator)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if addrs, err := l.NodeIPs(ctx); err == nil && len(addrs) > 0 {
		a.nodeIPs.Store(&addrs)
		a.kick()
	}
}

func (a *Agent) nextNode(ctx context.Context) (backend.Node, bool) {
	select {
	case <-ctx.Done():
		return backend.Node{}, false
	case node := <-a.nodes:
		return node, true
	}
}

// lastLease is what peers know of this node already: from the store, which is asked until it answers.
func (a *Agent) lastLease(ctx context.Context, node backend.Node) subnet.Lease {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		last, ok, err := a.Store.Last(ctx, a.unleased(node))
		switch {
		case err == nil && ok:
			return last
		case err == nil || ctx.Err() != nil:
			return a.oldLease()
		}
		a.Log.Warn("ask the store for this node's last lease", "node", a.Node, "err", err)
		pause(ctx, wait)
	}
}

// oldLease is the lease of an earlier run: the checkpoint's, else the subnets of subnet.env.
func (a *Agent) oldLease() subnet.Lease {
	if c, err := readCheckpoint(a.Checkpoint); err == nil && c.Node == a.Node {
		return c.Local.lease(a.Node)
	}
	lease := subnet.Lease{Node: a.Node}
	if env, err := subnet.ReadEnv(a.SubnetFile); err == nil {
		for _, p := range env.Subnets {
			lease.Stacks = append(lease.Stacks, subnet.Stack{Subnet: p.Masked()})
		}
	}
	return lease
}

// unleased is this node's lease without subnets and data.
func (a *Agent) unleased(node backend.Node) subnet.Lease {
	lease := subnet.Lease{Node: a.Node, Backend: a.Network.Backend}
	for _, u := range node.Underlays {
		lease.Stacks = append(lease.Stacks, subnet.Stack{Underlay: u.Public})
	}
	return lease
}

// wanted is what this node should publish, given what it published last.
func (a *Agent) wanted(node backend.Node, last subnet.Lease) subnet.Lease {
	lease := a.unleased(node)
	for i, stack := range lease.Stacks {
		if old, ok := last.Stack(stack.Family()); ok {
			lease.Stacks[i].Subnet = old.Subnet
		}
		data, err := a.Backend.Publish(node, last, stack.Is4())
		if err != nil {
			a.Log.Error("make the backend's data", "node", a.Node, "err", err)
			continue
		}
		lease.Stacks[i].Data = data
	}
	return lease
}

// watchStore keeps the newest snapshot for the loop.
func (a *Agent) watchStore(ctx context.Context) error {
	err := a.Store.Watch(ctx, func(snap subnet.Snapshot) {
		a.snapshot.Store(&snap)
		a.Metrics.snapshots.Inc()
		ring(a.news)
	})
	if err != nil {
		return ignoreDone(ctx, fmt.Errorf("watch the leases: %w", err))
	}
	return nil
}

func ignoreDone(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// leaseText is a lease for people: "10.244.1.0/24 at 192.168.33.101".
func leaseText(lease subnet.Lease) string {
	text := ""
	for i, s := range lease.Stacks {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s at %s", s.Subnet, s.Underlay)
	}
	return text
}
