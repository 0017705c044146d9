package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

// gatherInLab looks at the node of the lab that args name.
func (t *target) gatherInLab(ctx context.Context, args []string) (doctor.Facts, error) {
	node, o, err := labNode(t.lab, args)
	if err != nil {
		return doctor.Facts{}, err
	}
	var f doctor.Facts
	err = node.Do(func() (err error) {
		f, err = facts.Gather(ctx, t.override(o))
		return err
	})
	return f, err
}

// labNode returns a lab's node, and where its files are.
func labNode(name string, args []string) (*lab.Node, facts.Options, error) {
	l, err := lab.Open("", name)
	if err != nil {
		return nil, facts.Options{}, err
	}
	want := "node1"
	if len(args) > 0 {
		want = args[0]
	}
	for _, n := range l.Nodes() {
		if n.Name == want {
			return n, facts.Options{Checkpoint: n.CheckpointFile(), SubnetFile: n.SubnetFile(), CNIDir: n.Dir(),
				BinDir: filepath.Dir(l.Spec().Programs.Plugin), CNICache: n.CNICache()}, nil
		}
	}
	return nil, facts.Options{}, fmt.Errorf("lab %s has no node %q: want one of node1 to node%d",
		name, want, len(l.Nodes()))
}

// labNodes returns the names of a lab's nodes.
func labNodes(name string) ([]string, error) {
	l, err := lab.Open("", name)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range l.Nodes() {
		names = append(names, n.Name)
	}
	return names, nil
}

// inLabNode returns a function that calls others in the network namespace of a lab's node, and the path of its
// agent's log.
func inLabNode(name string, args []string) (do func(func() error) error, log string, err error) {
	n, _, err := labNode(name, args)
	if err != nil {
		return nil, "", err
	}
	return n.Do, n.Log(), nil
}

// traceInLab looks at both ends' nodes.
func (t *target) traceInLab(ctx context.Context, src, dst string) (doctor.Trace, error) {
	l, err := lab.Open("", t.lab)
	if err != nil {
		return doctor.Trace{}, err
	}
	if q, ok, err := service.ParseQuery(dst); ok || err != nil {
		if err != nil {
			return doctor.Trace{}, err
		}
		return t.serviceInLab(ctx, l, src, q)
	}
	from, sender, err := findPod(l, src, netip.Addr{})
	if err != nil {
		return doctor.Trace{}, err
	}
	to, receiver, err := findPod(l, dst, from.addr)
	if err != nil {
		return doctor.Trace{}, err
	}
	trace, ends, err := t.follow(ctx, from, to)
	if err == nil && t.options.Probe {
		err = probePair(ctx, l, &trace, from, to, ends)
	}
	if err != nil || !t.live {
		return trace, err
	}
	seen, err := walk.Watch(ctx, l, sender, receiver, netstate.FamilyOf(from.addr), t.during)
	trace.Traffic = &seen
	return trace, err
}

// follow traces a packet over the facts of both nodes, and returns these.
func (t *target) follow(ctx context.Context, from, to end) (doctor.Trace, []doctor.Facts, error) {
	flow := doctor.Flow{Src: from.addr, Dst: to.addr, From: from.node, To: to.node}
	tables := *t
	tables.options.Probe = false // probes follow
	near, err := tables.gather(ctx, []string{from.node})
	near.Node = from.node // without a lease a node does not know its name
	if err != nil || from.node == to.node {
		return doctor.Follow(near, near, flow), []doctor.Facts{near}, err
	}
	far, err := tables.gather(ctx, []string{to.node})
	far.Node = to.node
	return doctor.Follow(near, far, flow), []doctor.Facts{near, far}, err
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
