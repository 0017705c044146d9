// Package traffic watches the real packets between two pods: where they are seen, with a packet socket in each
// network namespace on the path, and why the kernel drops them, if it says so.
package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/packet"
)

// Place is a network namespace on the path.
type Place struct {
	Host string
	Do   func(func() error) error // calls a function in the namespace
}

// Here returns the namespace of this process.
func Here(host string) Place { return Place{host, func(f func() error) error { return f() }} }

// Watcher watches the packets of two pods, in either direction.
type Watcher struct {
	Src, Dst netip.Addr
	Places   []Place
	// Whole says that the places are the whole path, from the sender to the receiver. Otherwise drops in other
	// namespaces of this machine are reported too.
	Whole bool
}

// pollInterval is how long to wait for packets at a time.
const pollInterval = 50 * time.Millisecond

// watch is a Watcher that runs.
type watch struct {
	Watcher
	traffic doctor.Traffic
	taps    []*packet.Tap
	names   map[uint32]string // of namespaces, by inode number
	drops   *drops.Watcher
}

// Run watches until the context ends, which is no error. It calls ready when nothing escapes it any more.
func (w Watcher) Run(ctx context.Context, ready func()) (doctor.Traffic, error) {
	run := &watch{Watcher: w, names: map[uint32]string{}}
	defer run.close()
	if err := run.open(); err != nil {
		return run.traffic, err
	}
	began := time.Now()
	ready()
	for ctx.Err() == nil {
		if err := packet.Wait(run.taps, pollInterval); err != nil {
			return run.traffic, err
		}
		if err := run.collect(); err != nil {
			return run.traffic, err
		}
	}
	run.traffic.Seconds = time.Since(began).Seconds()
	err := run.collect()
	run.sort()
	return run.traffic, err
}

// sort orders what was seen by the path, whatever place was read first.
func (w *watch) sort() {
	at := map[string]int{}
	for i, p := range w.Places {
		at[p.Host] = i
	}
	slices.SortStableFunc(w.traffic.Forward, func(a, b doctor.Sighting) int { return at[a.Host] - at[b.Host] })
	slices.SortStableFunc(w.traffic.Back, func(a, b doctor.Sighting) int { return at[b.Host] - at[a.Host] })
}

func (w *watch) open() error {
	for _, p := range w.Places {
		err := p.Do(func() error {
			tap, err := packet.OpenTap()
			if err != nil {
				return err
			}
			w.taps = append(w.taps, tap)
			inode, err := drops.Namespace()
			w.names[inode] = p.Host
			return err
		})
		if err != nil {
			return fmt.Errorf("watch packets on %s: %w", p.Host, err)
		}
	}
	if w.Whole {
		w.traffic.Ends = [2]string{w.Places[0].Host, w.Places[len(w.Places)-1].Host}
	}
	var err error
	if w.drops, err = drops.Watch(w.Src, w.Dst); err != nil {
		w.traffic.NoReasons = err.Error()
	}
	return nil
}

// close stops watching drops first: closing a tap drops the packets that wait in it.
func (w *watch) close() {
	if w.drops != nil {
		_ = w.drops.Close()
	}
	for _, t := range w.taps {
		_ = t.Close()
	}
}

func (w *watch) collect() error {
	for i, tap := range w.taps {
		seen, err := tap.Read(func(f packet.Frame) bool { return f.Between(w.Src, w.Dst) || w.isBack(f) })
		isEnd := w.Whole && (i == 0 || i == len(w.taps)-1)
		for _, s := range seen {
			if isEnd && s.Stray {
				continue // a pod does not take a frame that is for another MAC
			}
			w.see(w.isBack(s.Frame), doctor.Sighting{Host: w.Places[i].Host, Dev: s.Dev, Out: s.Out, Packets: 1,
				Frame: s.Frame.Brief()})
		}
		if err != nil {
			return err
		}
	}
	if w.drops == nil {
		return nil
	}
	dropped, err := w.drops.Read()
	for _, d := range dropped {
		w.drop(d)
	}
	return err
}

func (w *watch) isBack(f packet.Frame) bool { return f.Between(w.Dst, w.Src) }

// see adds packets to the sightings.
func (w *watch) see(back bool, s doctor.Sighting) {
	list := &w.traffic.Forward
	if back {
		list = &w.traffic.Back
	}
	i := slices.IndexFunc(*list, func(o doctor.Sighting) bool {
		return o.Host == s.Host && o.Dev == s.Dev && o.Out == s.Out
	})
	if i < 0 {
		*list = append(*list, s)
		return
	}
	(*list)[i].Packets += s.Packets
}

// drop adds a dropped packet. An echo reply that a raw socket received, such as ping's, is also offered to ping
// sockets; that there is none is no loss. One on its way between nodes is lost.
func (w *watch) drop(d drops.Drop) {
	host, known := w.names[d.Netns]
	f, isUnheard := packet.DecodeStart(d.Packet), d.Reason == "NO_SOCKET"
	if d.OfWatching() || isUnheard && f.IsReply() && !f.Wrapped() || !known && w.Whole {
		return
	}
	if !known {
		host = fmt.Sprintf("network namespace %d", d.Netns)
	}
	dropped := doctor.Drop{Host: host, Dev: d.Dev, Reason: d.Reason, Function: d.Function, Back: w.isBack(f), Packets: 1,
		Frame: f.Brief()}
	if isUnheard {
		dropped.Unheard = f.Unheard()
	}
	for i := range w.traffic.Drops {
		o := &w.traffic.Drops[i]
		same := *o
		same.Packets, same.Frame = dropped.Packets, dropped.Frame
		if same == dropped {
			o.Packets++
			return
		}
	}
	w.traffic.Drops = append(w.traffic.Drops, dropped)
}
