// Package walk follows one ping through a lab: what it looked like on every device, captured with packet sockets,
// and which entry of which of the kernel's tables decided where it went next.
package walk

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

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
	Host    string       `json:"host"` // node1, node1/pod1, underlay
	Dev     string       `json:"dev"`
	Out     bool         `json:"out"` // it leaves the host, or its stack, through the device
	Frame   packet.Frame `json:"frame"`
	Entries []Entry      `json:"entries"` // what decided about the next step
}

// Stop is a namespace on the way.
type Stop struct {
	Name string
	Host host.Host
}

// patience is how long a host may take to see the packet.
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
	taps, err := openTaps(stops)
	defer closeTaps(taps)
	if err != nil {
		return p, err
	}
	took, err := from.Ping(ctx, host.Ping{To: p.Dst, Timeout: time.Second})
	p.Reply = fmt.Sprintf("answered after %.2f ms", took.Seconds()*1000)
	if err != nil {
		p.Reply = err.Error()
	}
	return p, p.collect(stops, taps)
}

// Stops are the hosts between two pods, in the order in which a packet meets them.
func Stops(l *lab.Lab, from, to *lab.Pod) ([]Stop, error) {
	first, last := Stop{from.ID(), from.Host}, Stop{to.ID(), to.Host}
	if from.Node.Name == to.Node.Name {
		return []Stop{first, {from.Node.Name, from.Node.Host}, last}, nil
	}
	underlay, err := l.Find("underlay")
	stops := []Stop{first, {from.Node.Name, from.Node.Host}}
	for _, r := range from.Node.Routers() {
		stops = append(stops, Stop{from.Node.Name + "'s router", r})
	}
	stops = append(stops, Stop{"underlay", underlay})
	for _, r := range to.Node.Routers() {
		stops = append(stops, Stop{to.Node.Name + "'s router", r})
	}
	return append(stops, Stop{to.Node.Name, to.Node.Host}, last), err
}

func openTaps(stops []Stop) ([]*packet.Tap, error) {
	var taps []*packet.Tap
	for _, s := range stops {
		err := s.Host.Do(func() error {
			t, err := packet.OpenTap()
			if err == nil {
				taps = append(taps, t)
			}
			return err
		})
		if err != nil {
			return taps, fmt.Errorf("listen in %s: %w", s.Name, err)
		}
	}
	return taps, nil
}

func closeTaps(taps []*packet.Tap) {
	for _, t := range taps {
		_ = t.Close() // a packet socket has nothing to lose
	}
}

func (p *Path) collect(stops []Stop, taps []*packet.Tap) error {
	var errs []error
	for i, t := range taps {
		seen, err := await(t, p.Dst)
		errs = append(errs, err)
		for _, s := range seen {
			entries, err := decide(stops[i].Host, s)
			errs = append(errs, err)
			p.Steps = append(
				p.Steps,
				Step{Host: stops[i].Name, Dev: s.Dev, Out: s.Out, Frame: s.Frame, Entries: entries},
			)
			p.Arrived = p.Arrived || i == len(taps)-1
		}
	}
	return errors.Join(errs...)
}

// await returns the echo requests to dst that a host saw; it waits for the first one.
func await(t *packet.Tap, dst netip.Addr) ([]packet.Sighting, error) {
	for end := time.Now().Add(patience); ; {
		seen, err := t.Read(func(f packet.Frame) bool { return f.IsRequest(dst) })
		left := time.Until(end)
		if err != nil || len(seen) > 0 || left <= 0 {
			return seen, err
		}
		if err := packet.Wait([]*packet.Tap{t}, left); err != nil {
			return nil, err
		}
	}
}
