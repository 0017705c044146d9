package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// publish acquires the node's lease, watches the store from then on, and publishes again when the
// node's facts change. It never touches the kernel.
func (a *Agent) publish(ctx context.Context, group *errgroup.Group) error {
	if s, ok := a.Store.(subnet.Disputed); ok {
		s.OnDispute(a.disputed)
	}
	node, ok := a.firstFacts(ctx)
	if !ok || !a.prepareBackend(ctx, node) {
		return nil
	}
	lease, err := a.acquire(ctx, node)
	if err != nil {
		return ignoreDone(ctx, fmt.Errorf("lease a subnet for node %s: %w", a.Node, err))
	}
	a.leases.acquired.Store(true)
	a.Log.Info("leased", "node", a.Node, "lease", leaseText(lease))
	a.sayKept(lease)
	group.Go(func() error { return a.watchStore(ctx) })
	for retry := newBackoff(); ; {
		select {
		case <-ctx.Done():
			return nil
		case node = <-a.facts:
		}
		want := a.toPublish(node, lease)
		if want.Equal(lease) {
			continue
		}
		renewed, err := a.Store.Acquire(ctx, want)
		if err != nil {
			a.causes.Error(a.Log, "publish the lease", err, "node", a.Node)
			loop.Sleep(ctx, retry.Next())
			a.trigger() // a reconcile sends the facts again
			continue
		}
		lease = renewed
		retry.Reset()
		a.Log.Info("published", "node", a.Node, "lease", leaseText(lease))
	}
}

// acquire acquires the node's lease. If its subnet is another one than before, that is published at once, too.
func (a *Agent) acquire(ctx context.Context, node backend.Node) (subnet.Lease, error) {
	last := a.lastLease(ctx, node)
	lease, err := a.Store.Acquire(ctx, a.toPublish(node, last))
	if err == nil && a.startEarlier(lease, last, a.earlierLease()) {
		lease, err = a.Store.Acquire(ctx, a.toPublish(node, lease))
	}
	return lease, err
}

// The store is asked for the node's own addresses every nodeIPInterval while there is no underlay,
// for nodeIPAnswer at most.
const nodeIPInterval, nodeIPAnswer = 2 * time.Second, 3 * time.Second

// firstFacts waits for an underlay. Nothing watches the store until then, so it is asked for the
// node's own addresses: a node may come back with others, and the cluster learn of them later than
// the agent starts.
func (a *Agent) firstFacts(ctx context.Context) (backend.Node, bool) {
	tick := time.NewTicker(nodeIPInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return backend.Node{}, false
		case node := <-a.facts:
			return node, true
		case <-tick.C:
			a.askNodeIPs(ctx)
		}
	}
}

// askNodeIPs asks the store for the node's own addresses, for the loop. No answer changes nothing.
func (a *Agent) askNodeIPs(ctx context.Context) {
	l, ok := a.Store.(subnet.Locator)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nodeIPAnswer)
	defer cancel()
	if addrs, err := l.NodeIPs(ctx); err == nil && len(addrs) > 0 {
		a.leases.nodeIPs.Store(&addrs)
		a.trigger()
	}
}

// lastLease returns what peers know of this node already: from the store, which is asked until it answers.
func (a *Agent) lastLease(ctx context.Context, node backend.Node) subnet.Lease {
	for retry := newBackoff(); ; {
		last, ok, err := a.Store.Last(ctx, a.bareLease(node))
		switch {
		case err == nil && ok:
			return last
		case err == nil || ctx.Err() != nil:
			return a.earlierLease()
		}
		a.causes.Error(a.Log, "ask the store for this node's last lease", err, "node", a.Node)
		loop.Sleep(ctx, retry.Next())
	}
}

// earlierLease returns the lease of an earlier run: the checkpoint's, else the subnets of subnet.env.
func (a *Agent) earlierLease() subnet.Lease {
	if earlier := a.earlier.Load(); earlier != nil && earlier.Node == a.Node {
		return earlier.Snapshot.Local
	}
	lease := subnet.Lease{Node: a.Node}
	if env, err := subnet.ReadEnv(a.Settings.SubnetFile); err == nil {
		for _, p := range env.Subnets {
			lease.Stacks = append(lease.Stacks, subnet.Stack{Subnet: p.Masked()})
		}
	}
	return lease
}

// bareLease returns this node's lease without subnets and data.
func (a *Agent) bareLease(node backend.Node) subnet.Lease {
	lease := subnet.Lease{Node: a.Node, Backend: a.Network.Backend}
	for _, u := range node.Underlays {
		lease.Stacks = append(lease.Stacks, subnet.Stack{Underlay: u.Public})
	}
	return lease
}

// leaseFor returns what this node should publish, given what it published last.
func (a *Agent) leaseFor(node backend.Node, last subnet.Lease) subnet.Lease {
	lease := a.bareLease(node)
	for i, stack := range lease.Stacks {
		if old, ok := last.Stack(stack.Family()); ok {
			lease.Stacks[i].Subnet = old.Subnet
		}
		data, err := a.Backend.Publish(node, last, stack.Family())
		if err != nil {
			a.causes.Error(a.Log, "make the backend's data", err, "node", a.Node)
			continue
		}
		lease.Stacks[i].Data = data
	}
	return lease
}

// sayKept logs which subnets of the lease the network config would not give to a new node.
func (a *Agent) sayKept(lease subnet.Lease) {
	if l, ok := a.Store.(subnet.Lessor); !ok || !l.Leases() {
		return
	}
	for _, s := range lease.Stacks {
		if p, ok := a.Network.Pool(s.Family()); ok && !p.Contains(s.Subnet) {
			a.Log.Info("the node keeps its subnet, which the network config would not give to a new node",
				"node", a.Node, "subnet", s.Subnet, "pool", p.String())
		}
	}
}

// watchStore keeps the newest snapshot for the loop.
func (a *Agent) watchStore(ctx context.Context) error {
	err := a.Store.Watch(ctx, func(snap subnet.Snapshot) {
		a.leases.newest.Store(&snap)
		a.Metrics.snapshots.Inc()
		loop.Notify(a.leases.changed)
	})
	if err != nil {
		return ignoreDone(ctx, fmt.Errorf("watch the leases: %w", err))
	}
	return nil
}

// ignoreDone returns nil for an error that the end of ctx made.
func ignoreDone(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// leaseText returns a lease for people: "10.244.1.0/24 at 192.168.33.101".
func leaseText(lease subnet.Lease) string {
	var parts []string
	for _, s := range lease.Stacks {
		parts = append(parts, fmt.Sprintf("%s at %s", s.Subnet, s.Underlay))
	}
	return strings.Join(parts, ", ")
}
