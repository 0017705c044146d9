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
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/packet"
)

// Watcher watches the packets of two pods, in either direction.
type Watcher struct {
	Src, Dst netip.Addr
	Places   []watch.Place
	// Whole says that the places are the whole path, from the sender to the receiver. Otherwise drops in other
	// namespaces of this machine are reported too.
	Whole bool
}

// run is a Watcher that runs.
type run struct {
	Watcher
	watch   *watch.Watch
	traffic doctor.Traffic
}

// Run watches until the context ends, which is no error. It calls ready when nothing escapes it any more.
func (w Watcher) Run(ctx context.Context, ready func()) (doctor.Traffic, error) {
	r := &run{Watcher: w}
	var err error
	r.watch, err = watch.Start(watch.Options{Places: w.Places, Drops: true, Between: ruletrace.Pair{A: w.Src, B: w.Dst}})
	if err != nil {
		return r.traffic, err
	}
	defer r.watch.Close()
	if w.Whole {
		r.traffic.Ends = [2]string{w.Places[0].Host, w.Places[len(w.Places)-1].Host}
	}
	if err := r.watch.NoDrops(); err != nil {
		r.traffic.NoReasons = err.Error()
	}
	began := time.Now()
	ready()
	err = r.watch.Until(ctx, r.collect)
	r.traffic.Seconds = time.Since(began).Seconds()
	r.sort()
	return r.traffic, err
}

// sort orders what was seen by the path, whatever place was read first.
func (w *run) sort() {
	at := map[string]int{}
	for i, p := range w.Places {
		at[p.Host] = i
	}
	slices.SortStableFunc(w.traffic.Forward, func(a, b doctor.Sighting) int { return at[a.Host] - at[b.Host] })
	slices.SortStableFunc(w.traffic.Back, func(a, b doctor.Sighting) int { return at[b.Host] - at[a.Host] })
}

func (w *run) collect() error {
	if err := w.watch.Frames(w.look); err != nil {
		return err
	}
	dropped, err := w.watch.Drops()
	for _, d := range dropped {
		w.drop(d)
	}
	return err
}

func (w *run) look(at int, c packet.Captured) error {
	s := c.Sighting(w.Places[at].Host)
	back := w.isBack(s.Frame)
	isEnd := w.Whole && (at == 0 || at == len(w.Places)-1)
	switch {
	case !back && !s.Frame.Between(w.Src, w.Dst):
	case isEnd && s.Stray: // a pod does not take a frame that is for another MAC
	default:
		w.see(back, doctor.Sighting{Point: s.Point, Packets: 1, Frame: s.Frame.Brief()})
	}
	return nil
}

func (w *run) isBack(f packet.Frame) bool { return f.Between(w.Dst, w.Src) }

// see adds packets to the sightings.
func (w *run) see(back bool, s doctor.Sighting) {
	list := &w.traffic.Forward
	if back {
		list = &w.traffic.Back
	}
	i := slices.IndexFunc(*list, func(o doctor.Sighting) bool { return o.Point == s.Point })
	if i < 0 {
		*list = append(*list, s)
		return
	}
	(*list)[i].Packets += s.Packets
}

// drop adds a dropped packet.
func (w *run) drop(d drops.Drop) {
	f := packet.DecodeStart(d.Packet)
	if watch.IsHarmless(d) || d.Host == "" && w.Whole {
		return
	}
	if d.Host == "" {
		d.Host = fmt.Sprintf("network namespace %d", d.Netns)
	}
	dropped := watch.Explain(d)
	dropped.Back = w.isBack(f)
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
