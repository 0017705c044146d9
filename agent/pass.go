package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// pass looks once: facts, leases, kernel. It returns when to look again if nothing happens.
func (a *Agent) pass(ctx context.Context) time.Duration {
	a.status.beat()
	node, err := a.look(ctx)
	if err != nil {
		a.status.logError(a.Log, "choose the underlay", err)
		if len(node.Underlays) == 0 {
			return firstRetry * 10
		}
	}
	a.node = node
	a.offer(node)
	snap, synced := a.newest()
	if snap == nil {
		if err == nil {
			a.warm(ctx, node)
		}
		return firstRetry
	}
	want := a.desired(node, snap)
	rest, err := a.converge(ctx, want, synced)
	if ctx.Err() != nil {
		return resync
	}
	o := outcome{want, rest, err}
	if a.right, a.unseen = nil, (time.Time{}); synced && !o.broken() {
		a.right = want
	}
	a.show(node, *snap, synced)
	return a.conclude(node, *snap, synced, o)
}

// asked is what the backend was asked last, and its answer: thousands of objects, which stay the same while only the
// kernel changes.
type asked struct {
	node backend.Node
	snap *subnet.Snapshot
	want netstate.State
}

// desired is Desired for this pass, with what there is to tell of it.
func (a *Agent) desired(node backend.Node, snap *subnet.Snapshot) netstate.State {
	if a.asked.snap == snap && reflect.DeepEqual(a.asked.node, node) {
		return a.asked.want
	}
	want, skips := a.Desired(node, *snap)
	a.reportSkips(append(slices.Clone(snap.Skips), skips...))
	a.Metrics.observed(*snap, want)
	a.asked = asked{node, snap, want}
	return want
}

// nodeIPGrace is how long a start waits for the node's own address to come to an interface before it takes the default
// route's: a network manager or a DHCP client may be slower than the agent.
const nodeIPGrace = 30 * time.Second

// look reads the machine's facts. With an error, the node may still have the underlays that it had before: a
// flapping interface is no reason to forget the peers.
func (a *Agent) look(ctx context.Context) (backend.Node, error) {
	interfaces, err := a.Machine.Interfaces(ctx)
	if err != nil {
		return a.node, err
	}
	a.redial(interfaces)
	p := a.Planner
	p.Choice.Last, p.Choice.Settled = a.told, p.Choice.Settled || time.Since(a.begun) > nodeIPGrace
	if addrs := a.nodeIPs.Load(); addrs != nil {
		p.Choice.NodeIPs = *addrs
	}
	if snap := a.snapshot.Load(); snap != nil && len(snap.NodeIPs) > 0 {
		p.Choice.NodeIPs = snap.NodeIPs
	}
	node, err := p.Facts(interfaces, a.node, a.Machine.RouteTo)
	if err != nil {
		return node, err
	}
	return node, a.checkMTU(node)
}

// redial has the store connect again when an address of this machine is gone.
func (a *Agent) redial(interfaces []netstate.Interface) {
	now := map[netip.Addr]bool{}
	for _, i := range interfaces {
		for _, p := range i.Addrs {
			now[p.Addr()] = true
		}
	}
	gone := slices.ContainsFunc(slices.Collect(maps.Keys(a.addrs)), func(addr netip.Addr) bool { return !now[addr] })
	a.addrs = now
	if r, ok := a.Store.(subnet.Redialer); ok && gone {
		r.Redial()
	}
}

// patience is how long a start waits for the store before it goes on with the checkpoint.
const patience = 3 * time.Second

// newest is the newest snapshot, and whether it comes from the store in this run. Nil: there is none yet.
func (a *Agent) newest() (snap *subnet.Snapshot, synced bool) {
	if snap := a.latest(); snap != nil {
		return snap, true
	}
	if time.Since(a.begun) < patience {
		return nil, false
	}
	if snap, ok := a.lastTime(); ok {
		a.status.logOnce(a.Log, "the store does not answer, going on with the checkpoint", "via", a.Checkpoint)
		return snap, false
	}
	return nil, false
}

// latest is the store's newest snapshot as the agent follows it, nil if there is none yet. Only the loop calls it.
func (a *Agent) latest() *subnet.Snapshot {
	raw := a.snapshot.Load()
	if raw == nil || raw == a.taken && a.peers.late == 0 {
		return a.peers.last
	}
	a.taken = raw
	snap := a.peers.follow(raw, time.Now())
	if a.peers.late > 0 {
		a.remind(a.peers.wait)
	}
	return snap
}

// remind makes the loop ask for the snapshot again after a while.
func (a *Agent) remind(wait time.Duration) {
	if a.reminder == nil {
		a.reminder = time.AfterFunc(wait, func() { ring(a.news) })
		return
	}
	a.reminder.Reset(wait)
}

// remember takes over what the checkpoint knows of the other nodes.
func (a *Agent) remember() {
	if snap, ok := a.lastTime(); ok {
		a.peers.remember(*snap)
	}
}

// lastTime is the checkpoint's snapshot, and whether there is one for this node and backend.
func (a *Agent) lastTime() (*subnet.Snapshot, bool) {
	c, err := readCheckpoint(a.Checkpoint)
	if err != nil || c.Node != a.Node || c.Local.Backend != a.Network.Backend {
		return nil, false
	}
	snap := c.snapshot()
	return &snap, true
}

// outcome is how a pass ended: what was wanted, what of it is not so, and why.
type outcome struct {
	want netstate.State
	rest netstate.Plan
	err  error
}

// broken says whether the node's data path as a whole does not work, as opposed to the way to some peers or to a
// leftover that cannot be deleted.
func (o outcome) broken() bool {
	if o.err != nil && len(o.rest) == 0 {
		return true // not even read back
	}
	wayToPeers := 0
	for _, c := range o.rest {
		if c.Want == nil {
			continue
		}
		switch c.Key().Kind {
		case netstate.KindNeigh, netstate.KindFDB, netstate.KindPeer, netstate.KindRoute:
			wayToPeers++
		default:
			return true
		}
	}
	return wayToPeers > len(o.want)/2
}

// conclude tells the world how the pass ended, and returns when to look again.
func (a *Agent) conclude(node backend.Node, snap subnet.Snapshot, synced bool, o outcome) time.Duration {
	broken := o.broken()
	if !broken {
		err := a.writeFiles(node, snap.Local, synced)
		broken = err != nil && !a.status.wasReady()
		o.err = errors.Join(o.err, err)
	}
	if o.err != nil {
		a.status.logError(a.Log, "bring the kernel to the wanted state", o.err)
	}
	a.status.concluded(synced, broken, o.err)
	a.Metrics.concluded(o, a.status.Ready() == nil)
	a.reportFights()
	a.reportNetwork(o)
	if synced {
		a.save(snap)
	}
	switch {
	case o.err != nil:
		return a.status.backoff()
	case a.fights.any():
		return time.Second
	}
	a.status.worked()
	return resync
}

// writeFiles writes what the runtime and the CNI plugin read. Its error keeps a node that was never ready from becoming so; one
// that is ready stays so, because its pods' network is as good as before. A CNI config that cannot be replaced hurts nobody as
// long as the one that is installed can be used: it is only told.
func (a *Agent) writeFiles(node backend.Node, lease subnet.Lease, synced bool) error {
	if err := a.writeEnv(node, lease); err != nil || !synced {
		return err
	}
	err := a.Conflist.write()
	if err == nil || !a.Conflist.usable() {
		a.conflist = ""
		return err
	}
	if text := err.Error(); a.conflist != text {
		a.conflist = text
		a.Log.Error("the CNI config stays as it was", "node", a.Node, "err", err)
		a.event("Warning", "ConflistNotWritten", clip(text))
	}
	return nil
}

// writeEnv tells the CNI plugin of the lease.
func (a *Agent) writeEnv(node backend.Node, lease subnet.Lease) error {
	env := subnet.Env{MTU: a.Backend.MTU(node), IPMasq: a.Firewall.Masq, BootID: bootID()}
	for _, stack := range lease.Stacks {
		pool, ok := a.Network.Pool(stack.Family())
		if !ok {
			continue
		}
		env.Networks = append(env.Networks, pool.Network)
		env.Subnets = append(env.Subnets, netip.PrefixFrom(backend.Gateway(stack.Subnet), stack.Subnet.Bits()))
	}
	return subnet.WriteEnv(a.SubnetFile, env)
}
