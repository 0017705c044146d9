package follow

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/doctor/unusual"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/packet"
)

// seenAt is what was seen in one place, and what it has.
type seenAt struct {
	watch.View
	id    identity
	veths map[string]veth

	unusual []locate.Object
	neighs  []neighbour
	unread  []string
}

// options are what is watched to follow lost probes.
func (n Network) options(lost []probe.Result) watch.Options {
	o := watch.Options{Places: n.places(lost), Drops: true}
	for _, r := range lost {
		f := n.flow(r)
		o.Rules = append(o.Rules, ruletrace.Pair{A: f.Src, B: f.Dst})
		if f.Mask.IsValid() {
			o.Rules = append(o.Rules, ruletrace.Pair{A: f.Mask, B: f.Dst})
		} else if f.Outer[1].IsValid() {
			o.Rules = append(o.Rules, ruletrace.Pair{A: f.Outer[0], B: f.Outer[1]})
		}
	}
	return o
}

// veth is one end of a virtual cable.
type veth struct{ index, peer int }

// cables returns the virtual cables of the calling thread's namespace, by their devices.
func cables() (map[string]veth, error) {
	links, err := rtnl.Retry("links", netlink.LinkList)
	all := map[string]veth{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "veth" {
			all[a.Name] = veth{a.Index, a.ParentIndex}
		}
	}
	return all, err
}

// look reads what the places have that packets were watched in. It returns what could not be read, too.
func (n Network) look(ctx context.Context, seen watch.Record) (all []*seenAt, unread []string, err error) {
	var group errgroup.Group
	for _, v := range seen.Views {
		s := &seenAt{View: v}
		all = append(all, s)
		group.Go(func() error { return s.Do(func() error { return s.look(ctx, n) }) })
	}
	err = group.Wait()
	unread = slices.Concat(seen.NoDrops, seen.Unread)
	for _, s := range all {
		unread = append(unread, s.unread...)
	}
	return all, unread, err
}

func (s *seenAt) look(ctx context.Context, n Network) (err error) {
	if s.id, err = identityOf(s.Place); err != nil {
		return err
	}
	if s.veths, err = cables(); err != nil {
		return fmt.Errorf("look at %s: %w", s.Host, err)
	}
	all, unread := unusual.List(ctx)
	for _, u := range unread {
		s.unread = append(s.unread, s.Host+": "+u)
	}
	if s.neighs, err = neighbours(); err != nil {
		s.unread = append(s.unread, fmt.Sprintf("%s: neighbours: %v", s.Host, err))
	}
	s.unusual = slices.DeleteFunc(all, func(o locate.Object) bool {
		return n.Expected != nil && n.Expected(s.Host, o)
	})
	return nil
}

// of returns what concerns one flow.
func of(f locate.Flow, all []*seenAt) (hosts []locate.Host) {
	for _, s := range all {
		if slices.Contains(f.Path, s.Host) {
			hosts = append(hosts, s.of(f))
		}
	}
	return hosts
}

func (s *seenAt) of(f locate.Flow) locate.Host {
	h := locate.Host{Name: s.Host, Unusual: s.unusual, MACs: slices.Sorted(maps.Keys(s.id.macs))}
	for _, n := range s.neighs {
		h.Neighbours = append(h.Neighbours, n.Object)
	}
	for _, frame := range s.Frames {
		if seen, ok := f.See(frame); ok {
			h.Seen = append(h.Seen, seen)
		}
	}
	for _, d := range s.Drops {
		if seen, ok := f.See(packet.Sighting{Frame: packet.DecodeStart(d.Packet)}); ok {
			dropped := watch.Explain(d)
			dropped.Back, dropped.Neighbour = seen.Back, seen.IsNeighbour()
			dropped.Limit, _ = unusual.Exhausted(d.Reason, d.Function, !f.Src.Is4())
			h.Drops = append(h.Drops, dropped)
		}
	}
	for _, x := range s.Hits {
		isMask := x.Effect.Source && f.Exit == s.Host && s.masks(f)
		if o := x.Object; isMask || doctor.IsOwnRule(o.Table, o.Chain, o.Target, o.Comment) {
			x.Rewrote, x.Effect = "", locate.Effect{} // it masquerades what leaves the cluster
			x.Object.Fix = ""                         // the agent would put it back
		}
		h.Hits = append(h.Hits, x)
	}
	h.Routed = s.routed(f, h)
	return h
}
