// Package walk follows one ping through a lab: what it looked like on every device, captured with packet sockets,
// and which entry of which of the kernel's tables decided where it went next.
package walk

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/packet"
)

// Path is one ping's way. Text, JSON and SVG are renderings of it.
type Path struct {
	From    string     `json:"from"` // node1/pod1
	To      string     `json:"to"`
	Src     netip.Addr `json:"src"`
	Dst     netip.Addr `json:"dst"`
	Steps   []Step     `json:"steps"`
	Arrived bool       `json:"arrived"` // the receiver's device saw the request
	Reply   string     `json:"reply"`   // what came of the ping
}

// Step is one device that saw the packet.
type Step struct {
	packet.Sighting
	Entries []Entry `json:"entries"` // what decided about the next step
}

// patience is how long the first ping may take.
const patience = 300 * time.Millisecond

// Walk pings once from one pod to another and returns the request's way. A ping that does not arrive is no error:
// its way ends where it ends.
func Walk(ctx context.Context, l *lab.Lab, from, to *lab.Pod, f netstate.Family) (Path, error) {
	p := Path{From: from.ID(), To: to.ID(), Src: from.Addr(f), Dst: to.Addr(f)}
	if !p.Src.IsValid() || !p.Dst.IsValid() {
		return p, fmt.Errorf(
			"walk from %s to %s: they have no addresses of that family, only %v and %v",
			p.From,
			p.To,
			from.Addrs,
			to.Addrs,
		)
	}
	if _, err := from.Ping(ctx, host.Ping{To: p.Dst, Timeout: patience}); err != nil && ctx.Err() != nil {
		return p, err // this first one is for the ARP entries that the second one's way is explained with
	}
	stops, err := Stops(l, from, to)
	if err != nil {
		return p, err
	}
	o := watch.Options{Places: stops, Match: func(f packet.Frame) bool { return f.IsRequest(p.Dst) }}
	seen, err := watch.While(o, func() error {
		took, err := from.Ping(ctx, host.Ping{To: p.Dst, Timeout: time.Second})
		p.Reply = fmt.Sprintf("answered after %.2f ms", took.Seconds()*1000)
		if err != nil {
			p.Reply = err.Error()
		}
		return nil
	})
	if err != nil {
		return p, err
	}
	return p, p.explain(seen.Views)
}

// Stops are the hosts between two pods, in the order in which a packet meets them.
func Stops(l *lab.Lab, from, to *lab.Pod) ([]watch.Place, error) {
	last := watch.Place{Host: to.ID(), Do: to.Do}
	if from.Node.Name == to.Node.Name {
		return append(leaving(from)[:2], last), nil
	}
	stops, err := StopsOut(l, from)
	return append(append(stops, routers(to.Node)...), watch.Place{Host: to.Node.Name, Do: to.Node.Do}, last), err
}

// StopsOut are the hosts from a pod to the underlay.
func StopsOut(l *lab.Lab, from *lab.Pod) ([]watch.Place, error) {
	underlay, err := l.Find("underlay")
	return append(leaving(from), watch.Place{Host: "underlay", Do: underlay.Do}), err
}

// leaving are a pod, its node, and the node's routers.
func leaving(from *lab.Pod) []watch.Place {
	return append([]watch.Place{{Host: from.ID(), Do: from.Do}, {Host: from.Node.Name, Do: from.Node.Do}}, routers(from.Node)...)
}

func routers(n *lab.Node) (all []watch.Place) {
	for _, r := range n.Routers() {
		all = append(all, watch.Place{Host: n.Name + "'s router", Do: r.Do})
	}
	return all
}

// explain adds the steps, and what decided about each.
func (p *Path) explain(seen []watch.View) error {
	var errs []error
	for i, v := range seen {
		for _, s := range v.Frames {
			entries, err := decide(v.Place, s)
			errs = append(errs, err)
			p.Steps = append(p.Steps, Step{s, entries})
			p.Arrived = p.Arrived || i == len(seen)-1
		}
	}
	return errors.Join(errs...)
}
