package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

// Lab is a Network of which every device can be looked at, and in which things may be broken.
type Lab interface {
	Network
	// Open returns the lab as it is now: nodes and pods come and go.
	Open() (*lab.Lab, error)
	// Walk follows one ping over every device, with IPv6 addresses if that is asked for.
	Walk(ctx context.Context, from, to string, ipv6 bool) (walk.Path, error)
}

// labTarget is the nodes of a lab. It is opened anew for each question.
type labTarget struct {
	fan

	name    string
	files   facts.Options // what the flags say of all nodes
	version string
}

// NewLab returns a lab, which need not be there yet.
func NewLab(name, version string) Lab { return newLab(Flags{lab: name, version: version}) }

func newLab(f Flags) *labTarget {
	t := &labTarget{name: f.lab, files: f.files, version: f.version}
	t.nodes = func(context.Context) ([]string, func(string) Node, error) {
		l, err := t.Open()
		if err != nil {
			return nil, nil, err
		}
		var names []string
		on := map[string]Node{}
		for _, n := range l.Nodes() {
			names = append(names, n.Name)
			on[n.Name] = t.here(l, n)
		}
		return names, func(name string) Node { return on[name] }, nil
	}
	t.one = func(context.Context) (Node, error) { return t.node("node1") }
	return t
}

func (t *labTarget) Open() (*lab.Lab, error) { return lab.Open("", t.name) }

// here returns a node.
func (t *labTarget) here(l *lab.Lab, n *lab.Node) *here {
	o := t.files
	o.Checkpoint, o.SubnetFile = cmp.Or(o.Checkpoint, n.CheckpointFile()), cmp.Or(o.SubnetFile, n.SubnetFile())
	o.CNIDir, o.CNICache = cmp.Or(o.CNIDir, n.Dir()), cmp.Or(o.CNICache, n.CNICache())
	o.BinDir = cmp.Or(o.BinDir, filepath.Dir(l.Spec().Programs.Plugin))
	return &here{name: n.Name, do: n.Do, files: o, bpffs: l.BPFDir(), log: n.Log(), version: t.version}
}

// node returns the node of that name.
func (t *labTarget) node(name string) (*here, error) {
	l, err := t.Open()
	if err != nil {
		return nil, err
	}
	for _, n := range l.Nodes() {
		if n.Name == name {
			return t.here(l, n), nil
		}
	}
	return nil, fmt.Errorf("lab %s has no node %q: want one of node1 to node%d", t.name, name, len(l.Nodes()))
}

func (t *labTarget) View() View {
	return View{Kind: "lab", Name: t.name, Version: t.version,
		Can: Can{Walk: true, Trace: true, Doctor: true, Probe: true, History: true, Faults: true, Scripts: true, Live: true}}
}

// Status returns the state of all nodes. In a lab without agents there is nothing that could be found wrong.
func (t *labTarget) Status(ctx context.Context) (doctor.StatusReport, error) {
	r, err := t.fan.Status(ctx)
	if err != nil {
		return r, err
	}
	l, err := t.Open()
	if err != nil || !l.Spec().Bare {
		return r, err
	}
	for _, n := range l.Nodes() {
		i := slices.IndexFunc(r.Nodes, func(s doctor.Status) bool { return s.Node == n.Name })
		if i >= 0 {
			r.Nodes[i].Findings, r.Nodes[i].Underlay = []string{}, texts(n.Underlay())
		}
	}
	return r, nil
}

func (t *labTarget) Places(context.Context) (Places, error) {
	l, err := t.Open()
	if err != nil {
		return Places{}, err
	}
	places := nowhere()
	for i, networks := range l.Spec().Segments() {
		segment := Segment{Name: fmt.Sprintf("segment %d", i+1), Subnets: texts(networks), Nodes: []string{}}
		for _, n := range l.Nodes() {
			if n.Segment() == i {
				segment.Nodes = append(segment.Nodes, n.Name)
			}
		}
		places.Segments = append(places.Segments, segment)
	}
	for _, p := range l.Pods() {
		places.Pods = append(places.Pods, Pod{ID: p.ID(), Node: p.Node.Name, Addrs: texts(p.Addrs)})
	}
	return places, nil
}

func texts[T fmt.Stringer](values []T) []string {
	all := []string{}
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

func (t *labTarget) Walk(ctx context.Context, from, to string, ipv6 bool) (walk.Path, error) {
	l, err := t.Open()
	if err != nil {
		return walk.Path{}, err
	}
	a, err := l.FindPod(from)
	if err != nil {
		return walk.Path{}, err
	}
	b, err := l.FindPod(to)
	if err != nil {
		return walk.Path{}, err
	}
	family := l.Spec().Families()[0]
	if ipv6 {
		family = netstate.IPv6
	}
	return walk.Walk(ctx, l, a, b, family)
}

func (t *labTarget) Senders(context.Context, string) (map[string]string, error) {
	l, err := t.Open()
	from := map[string]string{}
	if err != nil {
		return from, err
	}
	for _, p := range slices.Backward(l.Pods()) {
		from[p.Node.Name] = p.ID()
	}
	return from, nil
}

// Test sends packets from every pod to every other, and to the outside. A lab has no goals besides.
func (t *labTarget) Test(ctx context.Context, g Goals) (doctor.Connectivity, error) {
	tested := doctor.Connectivity{Schema: doctor.Schema, Cells: []doctor.Cell{}}
	if len(g.Pods)+len(g.Services)+len(g.DNS) > 0 {
		return tested, errors.New("--lab: a lab is tested between all its pods: want no --pod, --service or --dns")
	}
	outside, err := Addresses("--outside", g.Outside)
	if err != nil {
		return tested, err
	}
	l, err := t.Open()
	if err != nil {
		return tested, err
	}
	looks := sync.OnceValue(func() *labLooks { return t.lookAtAll(ctx, l, doctor.NoProbes) })
	n, err := labNetwork(l, func(host string, o locate.Object) bool { return looks().expects(host, o) })
	if err != nil {
		return tested, err
	}
	toOutside(l, &n, outside)
	n.Masks = func(node string, src, dst netip.Addr) bool { return looks().masks(node, src, dst) }
	judges := doctor.NewJudges()
	if l.Spec().NetworkPolicy {
		judges = looks().judges()
	}
	n.Denies = judges.Denies
	began := time.Now()
	r, err := n.Probe(ctx)
	count(&tested, n, r)
	tested.Probes.Seconds, tested.Probes.Unread, tested.Probes.Notes = time.Since(began).Seconds(), r.Unread, r.Notes
	tested.Explain(judges.Lost(r.Losses, r.Denied))
	return tested, err
}
