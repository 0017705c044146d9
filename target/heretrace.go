package target

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/traffic"
	"github.com/twill-net/twill/doctor/watch"
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
	f, err := h.gather(ctx, doctor.NoProbes) // probes follow
	if err != nil {
		return doctor.Trace{}, err
	}
	flow := doctor.Flow{Src: a, Dst: b, From: f.HolderOf(a), To: f.HolderOf(b)}
	for _, e := range []struct{ node, text string }{{flow.From, src}, {flow.To, dst}} {
		if e.node == "" {
			return doctor.Trace{}, fmt.Errorf("%s is in no node's subnet that this node knows", e.text)
		}
	}
	if !strings.EqualFold(f.Node, flow.From) && !strings.EqualFold(f.Node, flow.To) {
		return doctor.Trace{}, fmt.Errorf("neither %s (on %s) nor %s (on %s) is on this node, which is %s",
			src, flow.From, dst, flow.To, f.Node)
	}
	trace := doctor.FollowHere(f, flow)
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
	n, err := follow.Node(h.do, f, src, dst)
	if err != nil {
		return err
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
