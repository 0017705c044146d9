package target

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/traffic"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/subnet"
)

// end is one end of a trace: a pod.
type end struct {
	node string
	addr netip.Addr
	all  []netip.Addr // of both families
}

// Trace traces this node's part of the path. The leases say on which nodes the ends are.
func (h *here) Trace(ctx context.Context, src, dst string, how Tracing) (doctor.Trace, error) {
	if q, ok, err := service.ParseQuery(dst); ok || err != nil {
		if err != nil {
			return doctor.Trace{}, err
		}
		return h.traceService(ctx, src, q, how)
	}
	a, err := netip.ParseAddr(src)
	if err != nil {
		return doctor.Trace{}, fmt.Errorf("SRC %q: want an address of a pod", src)
	}
	b, err := netip.ParseAddr(dst)
	if err != nil {
		return doctor.Trace{}, fmt.Errorf("DST %q: want an address of a pod", dst)
	}
	f, err := h.gather(ctx, doctor.NoProbes, b) // probes follow
	if err != nil {
		return doctor.Trace{}, err
	}
	flow := doctor.Flow{Src: a, Dst: b, From: f.HolderOf(a), To: f.HolderOf(b)}
	isPods := slices.ContainsFunc(f.Lease.Network.Pools, func(p subnet.Pool) bool { return p.Network.Contains(b) })
	switch {
	case flow.From == "":
		return doctor.Trace{}, fmt.Errorf("%s is in no node's subnet that this node knows", src)
	case flow.To == "" && isPods:
		return doctor.Trace{}, fmt.Errorf("%s is in no node's subnet that this node knows", dst)
	case !strings.EqualFold(f.Node, flow.From) && !strings.EqualFold(f.Node, flow.To):
		return doctor.Trace{}, fmt.Errorf("neither %s (on %s) nor %s (on %s) is on this node, which is %s",
			src, flow.From, dst, cmp.Or(flow.To, "no node"), f.Node)
	case flow.To == "" && how.Live:
		return doctor.Trace{}, fmt.Errorf("%s is outside of the cluster: want no --live, which watches packets between pods", dst)
	}
	trace := doctor.FollowHere(f, flow)
	if flow.To == "" {
		trace = doctor.FollowOut(f, flow)
	}
	if how.Probe {
		if err := h.probeFrom(ctx, &trace, f, flow); err != nil {
			return trace, err
		}
	}
	if !how.Live {
		return trace, nil
	}
	ctx, stop := context.WithTimeout(ctx, how.During)
	defer stop()
	seen, err := traffic.Watcher{Src: a, Dst: b, Places: []watch.Place{{Host: f.Node, Do: h.do}}}.Run(ctx, func() {})
	trace.Traffic = &seen
	return trace, err
}

// probeFrom sends packets from this node's pod to the other one, or if it cannot be entered from the node itself.
func (h *here) probeFrom(ctx context.Context, trace *doctor.Trace, f doctor.Facts, flow doctor.Flow) error {
	src, dst := flow.Src, flow.Dst
	if !strings.EqualFold(f.Node, flow.From) {
		src, dst = dst, src
	}
	pods := []netip.Addr{src}
	if flow.To != "" {
		pods = append(pods, dst)
	}
	n, err := follow.Node(h.do, f, pods...)
	if err != nil {
		return err
	}
	if flow.To == "" {
		n.ToOutside(f, dst)
	}
	judges := doctor.NewJudges(f)
	n.Denies = judges.Denies
	began := time.Now()
	r, err := n.ProbePair(ctx, n.Sender(src), dst)
	p := probesOf(r, began)
	p.Other = n.Sender(src) != src
	trace.Add(p, judges.Lost(r.Losses, r.Denied))
	return err
}
