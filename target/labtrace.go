package target

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

// Trace looks at both ends' nodes.
func (t *labTarget) Trace(ctx context.Context, src, dst string, how Tracing) (doctor.Trace, error) {
	l, err := t.Open()
	if err != nil {
		return doctor.Trace{}, err
	}
	if q, ok, err := service.ParseQuery(dst); ok || err != nil {
		if err != nil {
			return doctor.Trace{}, err
		}
		return t.traceService(ctx, l, src, q, how)
	}
	from, sender, err := findPod(l, src, netip.Addr{})
	if err != nil {
		return doctor.Trace{}, err
	}
	to, receiver, err := findPod(l, dst, from.addr)
	if a, ok := findOutside(l, dst, from.addr); ok && err != nil {
		from.addr = familyAddr(sender.Addrs, a)
		return t.traceOut(ctx, l, from, a, how)
	}
	if err != nil {
		return doctor.Trace{}, err
	}
	trace, ends, err := t.follow(ctx, l, from, to)
	if err == nil && how.Probe {
		err = probePair(ctx, l, &trace, from, to, ends)
	}
	if err != nil || !how.Live {
		return trace, err
	}
	seen, err := walk.Watch(ctx, l, sender, receiver, netstate.FamilyOf(from.addr), how.During)
	trace.Traffic = &seen
	return trace, err
}

// findOutside finds an address outside of a lab's pods: that of its host there, or another one.
func findOutside(l *lab.Lab, text string, other netip.Addr) (netip.Addr, bool) {
	if _, all := l.Outside(); text == "outside" {
		a := familyAddr(all, other)
		return a, a.IsValid()
	}
	a, err := netip.ParseAddr(text)
	return a, err == nil
}

// traceOut follows the path from a pod to an address outside.
func (t *labTarget) traceOut(ctx context.Context, l *lab.Lab, from end, to netip.Addr, how Tracing) (doctor.Trace, error) {
	if !from.addr.IsValid() || how.Live {
		return doctor.Trace{}, fmt.Errorf("%s is outside: want an address of the pod's family, and no --live", to)
	}
	i := slices.IndexFunc(l.Nodes(), func(n *lab.Node) bool { return n.Name == from.node })
	f, err := t.here(l, l.Nodes()[i]).gather(ctx, doctor.NoProbes, to) // probes follow
	if err != nil {
		return doctor.Trace{}, err
	}
	f.Node = from.node
	trace := doctor.FollowOut(f, doctor.Flow{Src: from.addr, Dst: to, From: from.node})
	if how.Probe {
		err = probePair(ctx, l, &trace, from, end{addr: to}, []doctor.Facts{f})
	}
	return trace, err
}

// traceService connects from a pod of a lab to a Service, and follows the path to the endpoint.
func (t *labTarget) traceService(ctx context.Context, l *lab.Lab, src string, q service.Query, how Tracing) (doctor.Trace, error) {
	from, sender, err := findPod(l, src, netip.Addr{})
	if err != nil {
		return doctor.Trace{}, err
	}
	trace := doctor.NewServiceTrace(from.addr, q.String())
	trace.Services, trace.Problem, err = walk.Service(ctx, l, sender, q)
	if err != nil {
		return trace, err
	}
	e, ok := trace.Endpoint()
	if !ok {
		return trace, nil
	}
	from.addr = familyAddr(sender.Addrs, e.Addr())
	to, _, err := findPod(l, e.Addr().String(), from.addr)
	if err != nil || to.addr == from.addr {
		return trace, nil // the endpoint is the client or no pod, so there is no more to follow
	}
	path, ends, err := t.follow(ctx, l, from, to)
	if err == nil && how.Probe {
		err = probePair(ctx, l, &path, from, to, ends)
	}
	return pathOf(trace, path), err
}

// follow traces a packet over the facts of both nodes, and returns these.
func (t *labTarget) follow(ctx context.Context, l *lab.Lab, from, to end) (doctor.Trace, []doctor.Facts, error) {
	flow := doctor.Flow{Src: from.addr, Dst: to.addr, From: from.node, To: to.node}
	var all []doctor.Facts
	for _, name := range slices.Compact([]string{from.node, to.node}) {
		i := slices.IndexFunc(l.Nodes(), func(n *lab.Node) bool { return n.Name == name })
		f, err := t.here(l, l.Nodes()[i]).gather(ctx, doctor.NoProbes) // probes follow
		f.Node = name
		if all = append(all, f); err != nil {
			return doctor.Trace{}, all, err
		}
	}
	return doctor.Follow(all[0], all[len(all)-1], flow), all, nil
}

// findPod finds a pod of the lab by its name, its address, or its node; other is the other end, whose family it must
// have.
func findPod(l *lab.Lab, text string, other netip.Addr) (end, *lab.Pod, error) {
	for _, p := range l.Pods() {
		for _, a := range p.Addrs {
			named := text == p.Node.Name || text == p.Node.Name+"/"+p.Name
			if a.String() == text || named && a != other && (!other.IsValid() || a.Is4() == other.Is4()) {
				return end{p.Node.Name, a, p.Addrs}, p, nil
			}
		}
	}
	return end{}, nil, fmt.Errorf("lab %s has no pod %q: want NODE/POD, an address of a pod, or a node", l.Name(), text)
}
