package target

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/connect"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/subnet"
)

// maxObjects bounds the bytes of objects that are read from a file.
const maxObjects = 64 << 20

// addService connects to targets, and adds what became of it.
func addService(ctx context.Context, trace *doctor.Trace, p connect.Places, targets []service.Target) error {
	for _, t := range targets {
		seen, err := p.To(ctx, t)
		if err != nil {
			return err
		}
		trace.Services = append(trace.Services, service.Explain(t, seen))
	}
	return nil
}

// pathOf joins reports about a Service and the trace to an endpoint, as if one had been asked for.
func pathOf(services, path doctor.Trace) doctor.Trace {
	path.Services = services.Services
	return path
}

// familyAddr returns the address of the other's family.
func familyAddr(all []netip.Addr, other netip.Addr) netip.Addr {
	for _, a := range all {
		if a.Is4() == other.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// traceService connects from this node's pod to a Service. The objects are in a file, or the targets if a workstation
// has looked them up.
func (h *here) traceService(ctx context.Context, src string, q service.Query, how Tracing) (doctor.Trace, error) {
	from, err := netip.ParseAddr(src)
	if err != nil {
		return doctor.Trace{}, fmt.Errorf("SRC %q: want an address of a pod", src)
	}
	f, err := h.gather(ctx, doctor.NoProbes)
	if err != nil {
		return doctor.Trace{}, err
	}
	if holder := f.HolderOf(from); !strings.EqualFold(holder, f.Node) {
		return doctor.Trace{}, fmt.Errorf("SRC %s is no pod of this node, which is %s", src, f.Node)
	}
	p, err := h.places(f, from)
	if err != nil {
		return doctor.Trace{}, err
	}
	trace := doctor.NewServiceTrace(p.Client.Addrs[0], q.String())
	targets, problem, err := how.read(q, f.Node, p.Client.Addrs)
	if err != nil || problem != nil {
		trace.Problem = problem
		return trace, err
	}
	if err := addService(ctx, &trace, p, targets); err != nil {
		return trace, err
	}
	e, ok := trace.Endpoint()
	if !ok || how.Targets || f.HolderOf(e.Addr()) == "" {
		return trace, nil
	}
	path, err := h.Trace(ctx, familyAddr(p.Client.Addrs, e.Addr()).String(), e.Addr().String(), how)
	return pathOf(trace, path), err
}

// read reads targets, or objects and finds the targets in them.
func (t Tracing) read(q service.Query, node string, client []netip.Addr) (
	[]service.Target, *service.Problem, error) {
	if t.Objects == "" {
		return nil, nil, fmt.Errorf("%s: a node does not know Services: give them by --objects, as in "+
			"kubectl get services,endpointslices,nodes --all-namespaces --output=json | twillctl trace --objects - SRC DST", q)
	}
	file := os.Stdin
	if t.Objects != "-" {
		var err error
		if file, err = os.Open(t.Objects); err != nil {
			return nil, nil, err
		}
		defer file.Close()
	}
	data, err := io.ReadAll(io.LimitReader(file, maxObjects))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", t.Objects, err)
	}
	if t.Targets {
		var targets []service.Target
		if err := json.Unmarshal(data, &targets); err != nil {
			return nil, nil, fmt.Errorf("read targets: %w", err)
		}
		return targets, nil, nil
	}
	catalog, err := service.Parse(data)
	if err != nil {
		return nil, nil, err
	}
	targets, problem := catalog.Goals(q, node, client)
	return targets, problem, nil
}

// places returns the namespaces that this node can enter: its own, and its pods'. If the client's is not among
// them, another pod connects in its place, or the node itself with the bridge's address.
func (h *here) places(f doctor.Facts, client netip.Addr) (connect.Places, error) {
	pods, err := follow.PodSites(h.do, f)
	if err != nil {
		return connect.Places{}, err
	}
	here := watch.Place{Host: f.Node, Do: h.do}
	p := connect.Places{Nodes: map[string]connect.Node{}, Pods: pods}
	p.Client = connect.Client{Place: here, Node: f.Node}
	for _, l := range append([]subnet.Lease{f.Lease.Snapshot.Local}, f.Lease.Snapshot.Peers...) {
		n := connect.Node{}
		for _, s := range l.Stacks {
			n.Addrs = append(n.Addrs, s.Underlay)
			if l.Node == f.Node {
				n.Place, p.Client.Addrs = here, append(p.Client.Addrs, backend.Gateway(s.Subnet))
			}
		}
		p.Nodes[l.Node] = n
	}
	if pods[client].Do == nil && len(pods) > 0 {
		client = slices.SortedFunc(maps.Keys(pods), netip.Addr.Compare)[0]
	}
	if pod := pods[client]; pod.Do != nil {
		p.Client = connect.Client{Place: pod, Node: f.Node, Addrs: []netip.Addr{client}}
		for a, s := range pods {
			if a != client && s.Host == pod.Host {
				p.Client.Addrs = append(p.Client.Addrs, a)
			}
		}
	}
	if len(p.Client.Addrs) == 0 {
		return p, fmt.Errorf("node %s has no address to connect from", f.Node)
	}
	return p, nil
}
