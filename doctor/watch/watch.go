// Package watch is the instrument that sees what becomes of packets in network namespaces: a packet socket on all devices
// of each, the kernel's reasons for dropping packets, and the firewall rules that packets meet.
package watch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/packet"
)

// Place is a network namespace.
type Place struct {
	Host string                   // node1, node1/pod1, underlay
	Do   func(func() error) error // calls a function in the namespace; nil: it cannot be entered
}

// Here returns the namespace of the calling thread. Rules are watched there only if all threads are in it.
func Here(host string) Place { return Place{host, func(f func() error) error { return f() }} }

// Enterable returns the places that can be entered, each once.
func Enterable(all []Place) (some []Place) {
	for _, p := range all {
		if p.Do != nil && !slices.ContainsFunc(some, func(o Place) bool { return o.Host == p.Host }) {
			some = append(some, p)
		}
	}
	return some
}

// Options say what is watched.
type Options struct {
	Places []Place
	// Match chooses the frames and drops of a Record; nil: all.
	Match func(packet.Frame) bool
	ICMP  bool // no other packets are seen
	Times bool // the kernel notes when it saw each frame
	// Drops asks the kernel why it drops packets in the places; with Between only those between two addresses, and in all
	// namespaces of this machine.
	Drops   bool
	Between ruletrace.Pair
	// Rules are the addresses between which packets show the rules that they meet; none: no rules are watched.
	Rules []ruletrace.Pair
}

// Watch is what watches.
type Watch struct {
	places  []*place
	drops   *drops.Watcher
	noDrops error // why drops are not watched
}

// place is a Place that is watched.
type place struct {
	View
	inode  uint32
	tap    *packet.Tap
	tracer *ruletrace.Tracer
	unread []string
}

// Start begins to watch. From then on nothing escapes it.
func Start(o Options) (*Watch, error) {
	w := &Watch{}
	for _, p := range o.Places {
		w.places = append(w.places, &place{View: View{Place: p}})
	}
	if len(o.Rules) > 0 { // first: it takes longest, and frames would wait meanwhile
		w.each(func(p *place) { p.trace(o.Rules) })
	}
	for _, p := range w.places { // not at once: Here is the calling thread's
		if err := p.Do(func() error { return p.open(o) }); err != nil {
			w.Close()
			return nil, fmt.Errorf("watch packets on %s: %w", p.Host, err)
		}
	}
	if o.Drops {
		w.drops, w.noDrops = w.watchDrops(o.Between)
	}
	return w, nil
}

func (p *place) open(o Options) (err error) {
	if p.inode, err = drops.Namespace(); err != nil {
		return err
	}
	if p.tap, err = packet.OpenTap(); err != nil {
		return err
	}
	if o.ICMP {
		err = p.tap.OnlyICMP()
	}
	if o.Times && err == nil {
		err = p.tap.Stamp()
	}
	return err
}

func (w *Watch) watchDrops(between ruletrace.Pair) (*drops.Watcher, error) {
	if between.A.IsValid() {
		return drops.Watch(between.A, between.B)
	}
	var inodes []uint32
	for _, p := range w.places {
		inodes = append(inodes, p.inode)
	}
	return drops.WatchNamespaces(inodes)
}

// each does something in all places at once.
func (w *Watch) each(do func(*place)) {
	var group errgroup.Group
	for _, p := range w.places {
		group.Go(func() error { do(p); return nil })
	}
	_ = group.Wait() // places note what fails
}

// Close ends watching. It stops watching drops first: closing a tap drops the packets that wait in it.
func (w *Watch) Close() {
	if w.drops != nil {
		_ = w.drops.Close()
	}
	for _, p := range w.places {
		if p.tracer != nil {
			_ = p.tracer.Close() // the kernel removes its tables with the socket
		}
		if p.tap != nil {
			_ = p.tap.Close() // a packet socket has nothing to lose
		}
	}
}

// NoDrops returns why drops are not watched, if that was asked for.
func (w *Watch) NoDrops() error { return w.noDrops }

// pollInterval is how long to wait for packets at a time.
const pollInterval = 20 * time.Millisecond

// Until calls a function whenever there may be something to read, until the context ends, and then once more.
func (w *Watch) Until(ctx context.Context, read func() error) error {
	for ctx.Err() == nil {
		if err := w.Wait(pollInterval); err != nil {
			return err
		}
		if err := read(); err != nil {
			return err
		}
	}
	return read()
}

// Wait returns when there is a frame to read, or after the timeout.
func (w *Watch) Wait(timeout time.Duration) error {
	taps := make([]*packet.Tap, 0, len(w.places))
	for _, p := range w.places {
		taps = append(taps, p.tap)
	}
	return packet.Wait(taps, timeout)
}

// Frames calls a function with each frame that waits and the number of its place, in each place in the order of time. It
// does not block.
func (w *Watch) Frames(do func(at int, c packet.Captured) error) error {
	for i, p := range w.places {
		if err := p.tap.Each(func(c packet.Captured) error { return do(i, c) }); err != nil {
			return fmt.Errorf("watch packets on %s: %w", p.Host, err)
		}
	}
	return nil
}

// Drops returns what the kernel dropped since the last call. It does not block.
func (w *Watch) Drops() (all []drops.Drop, err error) {
	if w.drops == nil {
		return nil, nil
	}
	dropped, err := w.drops.Read()
	for _, d := range dropped {
		for _, p := range w.places {
			if p.inode == d.Netns {
				d.Host = p.Host
			}
		}
		if !d.OfWatching() {
			all = append(all, d)
		}
	}
	return all, err
}

// Lost returns how many frames came faster than they were read since the last call.
func (w *Watch) Lost() (all int, err error) {
	for _, p := range w.places {
		lost, err := p.tap.Lost()
		if err != nil {
			return all, err
		}
		all += int(lost)
	}
	return all, nil
}
