// Package lab runs a small cluster on one machine: nodes are network namespaces on an underlay, each runs the
// real twilld process, and their pods are wired by the real twill binary through libcni. It needs Go, and root at least
// of a user namespace (package rootless), no image, no container runtime and, unless the store is kube, no cluster.
//
// All traffic stays inside the namespaces that a lab makes. A lab outlives the program that brought it up; what
// it takes to use and to remove it stands in state.json in its directory.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/host"
)

// Lab is a lab that is up.
type Lab struct {
	spec     Spec
	dir      string
	progress func(string)
	underlay host.Host // the router, where the store's servers run too
	outside  host.Host // behind the router; it knows no way to pods
	store    store

	mu    sync.Mutex
	state state
	nodes []*Node
}

func newLab(spec Spec, progress func(string)) *Lab {
	if progress == nil {
		progress = func(string) {}
	}
	l := &Lab{spec: spec, dir: spec.dir(), progress: progress}
	l.underlay, l.outside = l.host(underlayName), l.host(outsideName)
	l.store = newStore(l)
	return l
}

func (l *Lab) host(name string) host.Host { return host.Host{Name: l.spec.Name + "-" + name} }

// Up brings a lab up, and returns when all pods are wired. A lab that is up already with the same spec is used
// as it is, and what died of it is started again; what a crash left of one is removed first. Progress is told
// what happens, a line at a time.
func Up(ctx context.Context, spec Spec, progress func(string)) (*Lab, error) {
	spec = spec.withDefaults()
	if err := spec.check(); err != nil {
		return nil, err
	}
	if err := needsRoot(); err != nil {
		return nil, err
	}
	if spec.Programs.Agent == "" {
		programs, err := FindPrograms()
		if err != nil {
			return nil, err
		}
		spec.Programs = programs
	}
	if err := errors.Join(spec.checkAgent(), spec.checkProxy()); err != nil {
		return nil, err
	}
	unlock, err := lock(spec)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return up(ctx, spec, progress)
}

func needsRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a lab needs root: network namespaces and raw sockets")
	}
	return nil
}

func up(ctx context.Context, spec Spec, progress func(string)) (*Lab, error) {
	st, err := readState(spec.dir())
	switch {
	case err == nil && st.Complete && !st.Spec.same(spec):
		return nil, fmt.Errorf(
			"lab %s is up with other settings: remove it with twillctl lab down --name %s, or give this one another --name",
			spec.Name,
			spec.Name,
		)
	case err == nil && st.Complete:
		if l := restore(spec, st, progress); l.check() == nil {
			return l, l.resume(ctx)
		}
	}
	l := newLab(spec, progress)
	if removed, err := l.remove(); err != nil {
		return nil, err
	} else if removed.Found {
		l.progress("removed what an earlier run had left")
	}
	if err := l.build(ctx); err != nil {
		if !spec.Keep {
			_, removeErr := l.remove()
			err = errors.Join(err, removeErr)
		}
		return nil, err
	}
	return l, nil
}

// Open finds a lab that is up. Dir may be empty.
func Open(dir, name string) (*Lab, error) {
	spec := Spec{Dir: dir, Name: name}.withDefaults()
	st, err := readState(spec.dir())
	if err != nil {
		return nil, notThere(err, spec.Name)
	}
	if err := needsRoot(); err != nil {
		return nil, err
	}
	st.Spec.Dir = spec.Dir
	if st.Spec.Programs, err = FindPrograms(); err != nil {
		return nil, err
	}
	l := restore(st.Spec, st, nil)
	return l, l.check()
}

// check returns an error if a namespace of a lab that is up is gone or hidden: its cables are cut then.
func (l *Lab) check() error {
	if !l.state.Complete {
		return nil
	}
	hosts := []host.Host{l.underlay, l.outside}
	for _, n := range l.nodes {
		hosts = slices.Concat(hosts, []host.Host{n.Host}, n.Routers(), n.podHosts())
	}
	for _, h := range hosts {
		if !h.Exists() {
			return fmt.Errorf(
				"lab %s: the namespace %s is gone or hidden by another mount: twillctl lab up makes the lab anew",
				l.spec.Name,
				h.Path(),
			)
		}
	}
	return nil
}

func restore(spec Spec, st state, progress func(string)) *Lab {
	l := newLab(spec, progress)
	l.state = st
	for _, ns := range st.Nodes {
		l.nodes = append(l.nodes, l.newNode(ns))
	}
	return l
}

func (l *Lab) build(ctx context.Context) error {
	for _, dir := range []string{l.dir, filepath.Join(l.dir, "logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create the lab's directory: %w", err)
		}
	}
	if err := l.change(func(s *state) { s.Spec, s.Servers = l.spec, map[string]host.Process{} }); err != nil {
		return err
	}
	if err := errors.Join(l.writeNetConf(), l.mountBPF()); err != nil {
		return err
	}
	l.progress(fmt.Sprintf("underlay: %s, %d segment(s)", l.spec.Underlay, l.spec.segments()))
	if err := l.buildUnderlay(ctx); err != nil {
		return err
	}
	if err := l.startCloud(ctx); err != nil {
		return err
	}
	if err := l.buildNodes(ctx); err != nil {
		return err
	}
	return l.change(func(s *state) { s.Complete = true })
}

// buildNodes starts the store's servers while the nodes are plugged in, and then the agents.
func (l *Lab) buildNodes(ctx context.Context) error {
	plug, plugCtx := errgroup.WithContext(ctx)
	plug.Go(func() error { return l.startStore(plugCtx) })
	for n := 1; n <= l.spec.Nodes; n++ {
		node, err := l.enroll(n)
		if err != nil {
			return errors.Join(err, plug.Wait())
		}
		plug.Go(func() error { return node.plug(plugCtx) })
	}
	if err := plug.Wait(); err != nil {
		return err
	}
	start, ctx := errgroup.WithContext(ctx)
	for _, node := range l.Nodes() {
		start.Go(func() error { return node.populate(ctx) })
	}
	return start.Wait()
}

// startStore starts the servers of a lab that has agents.
func (l *Lab) startStore(ctx context.Context) error {
	if l.spec.Bare {
		return nil
	}
	return l.store.start(ctx)
}

// resume starts what has died.
func (l *Lab) resume(ctx context.Context) error {
	l.progress(fmt.Sprintf("lab %s is up already", l.spec.Name))
	if l.spec.Bare {
		return nil
	}
	if err := l.store.start(ctx); err != nil {
		return err
	}
	if err := l.startCloud(ctx); err != nil {
		return err
	}
	for _, n := range l.Nodes() {
		if err := n.joinCloud(ctx); err != nil {
			return err
		}
		if !n.AgentRunning() {
			l.progress(n.Name + ": the agent has ended, starting it again")
		}
		if err := n.StartAgent(ctx); err != nil {
			return err
		}
		if err := n.startProxy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Name is the lab's name, the prefix of its namespaces.
func (l *Lab) Name() string { return l.spec.Name }

// Spec is what the lab was made of.
func (l *Lab) Spec() Spec { return l.spec }

// Dir is where the lab keeps its state, its logs and its nodes' files.
func (l *Lab) Dir() string { return l.dir }

// Outside is the host behind the underlay's router, and its addresses, IPv4 first. It knows no way to pods.
func (l *Lab) Outside() (host.Host, []netip.Addr) {
	var addrs []netip.Addr
	for _, k := range l.outsideLinks() {
		addrs = append(addrs, k.host.Addr())
	}
	return l.outside, addrs
}

// Nodes are the lab's nodes, in the order of their numbers.
func (l *Lab) Nodes() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.nodes)
}

// Pods are all nodes' pods.
func (l *Lab) Pods() []*Pod {
	var pods []*Pod
	for _, n := range l.Nodes() {
		pods = append(pods, n.Pods()...)
	}
	return pods
}

// FindPod is the pod of a name: NODE/POD.
func (l *Lab) FindPod(id string) (*Pod, error) {
	var ids []string
	for _, p := range l.Pods() {
		if p.ID() == id {
			return p, nil
		}
		ids = append(ids, p.ID())
	}
	return nil, fmt.Errorf("lab %s has no pod %q: want one of %v", l.spec.Name, id, ids)
}

// Find is the host of a name: a node, a pod as NODE/POD or NODE-POD, underlay or outside.
func (l *Lab) Find(name string) (host.Host, error) {
	switch name {
	case underlayName:
		return l.underlay, nil
	case outsideName:
		return l.outside, nil
	}
	var names []string
	for _, n := range l.Nodes() {
		if names = append(names, n.Name); n.Name == name {
			return n.Host, nil
		}
		for _, p := range n.Pods() {
			if name == n.Name+"/"+p.Name || name == n.Name+"-"+p.Name {
				return p.Host, nil
			}
		}
	}
	return host.Host{}, fmt.Errorf(
		"lab %s has no host %q: want one of %v, NODE/POD, underlay or outside",
		l.spec.Name,
		name,
		names,
	)
}
