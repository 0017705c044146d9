// Package live watches the real packets between two pods: where they are seen, by a packet socket in each namespace
// on the way, and why the kernel drops them, where it says so.
package live

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/packet"
)

// Place is a network namespace on the way.
type Place struct {
	Host string
	Do   func(func() error) error // calls in the namespace
}

// Here is the namespace of this process.
func Here(host string) Place { return Place{host, func(f func() error) error { return f() }} }

// Watching is what to look for, and where.
type Watching struct {
	Src, Dst netip.Addr
	Places   []Place
	// Whole says that the places are the whole way, from the sender to the receiver. Else drops in other namespaces
	// of this machine are reported too.
	Whole bool
}

// breath is how long packets are waited for at a time.
const breath = 50 * time.Millisecond

// watch is a Watching under way.
type watch struct {
	Watching
	live  doctor.Live
	taps  []*packet.Tap
	names map[uint32]string // of namespaces, by inode number
	drops *drops.Watcher
}

// Watch calls begun when everything is listening, and watches until the context ends, which is no error.
func (w Watching) Watch(ctx context.Context, begun func()) (doctor.Live, error) {
	run := &watch{Watching: w, names: map[uint32]string{}}
	defer run.close()
	if err := run.open(); err != nil {
		return run.live, err
	}
	began := time.Now()
	begun()
	for ctx.Err() == nil {
		if err := packet.Wait(run.taps, breath); err != nil {
			return run.live, err
		}
		if err := run.collect(); err != nil {
			return run.live, err
		}
	}
	run.live.Seconds = time.Since(began).Seconds()
	err := run.collect()
	run.sort()
	return run.live, err
}

// sort orders what was seen by the way, whatever place was read first.
func (w *watch) sort() {
	at := map[string]int{}
	for i, p := range w.Places {
		at[p.Host] = i
	}
	slices.SortStableFunc(w.live.There, func(a, b doctor.Sight) int { return at[a.Host] - at[b.Host] })
	slices.SortStableFunc(w.live.Back, func(a, b doctor.Sight) int { return at[b.Host] - at[a.Host] })
}

func (w *watch) open() error {
	for _, p := range w.Places {
		err := p.Do(func() error {
			tap, err := packet.OpenTap()
			if err != nil {
				return err
			}
			w.taps = append(w.taps, tap)
			inode, err := namespace()
			w.names[inode] = p.Host
			return err
		})
		if err != nil {
			return fmt.Errorf("watch packets on %s: %w", p.Host, err)
		}
	}
	if w.Whole {
		w.live.Ends = [2]string{w.Places[0].Host, w.Places[len(w.Places)-1].Host}
	}
	var err error
	if w.drops, err = drops.Watch(w.Src, w.Dst); err != nil {
		w.live.NoReasons = err.Error()
	}
	return nil
}

// namespace is the inode number of the calling thread's network namespace, by which the kernel knows it too.
func namespace() (uint32, error) {
	info, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return 0, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("the namespace has no inode number")
	}
	return uint32(s.Ino), nil
}

// close ends the drops first: packets that wait in a closed tap are dropped too.
func (w *watch) close() {
	if w.drops != nil {
		_ = w.drops.Close()
	}
	for _, t := range w.taps {
		_ = t.Close()
	}
}

func (w *watch) collect() error {
	for i := range w.taps {
		if err := w.read(i); err != nil {
			return err
		}
	}
	if w.drops == nil {
		return nil
	}
	lost, err := w.drops.Read()
	for _, d := range lost {
		w.miss(d)
	}
	return err
}

func (w *watch) read(i int) error {
	seen, err := w.taps[i].Read(func(f packet.Frame) bool { return f.Between(w.Src, w.Dst) || f.Between(w.Dst, w.Src) })
	for _, s := range seen {
		w.live.See(s.Frame.Between(w.Dst, w.Src), doctor.Sight{Host: w.Places[i].Host, Dev: s.Dev, Out: s.Out, Packets: 1, Frame: s.Frame.Brief()})
	}
	return err
}

// ours are reasons of what watching itself throws away. An echo reply that a raw socket took, as ping's, is also offered
// to ping sockets, of which there is none: that is no loss either.
var ours = map[string]bool{"PACKET_SOCK_ERROR": true, "QUEUE_PURGE": true, "SOCKET_FILTER": true}

func (w *watch) miss(d drops.Drop) {
	host, known := w.names[d.Netns]
	f := packet.DecodeStart(d.Packet)
	if ours[d.Reason] || d.Reason == "NO_SOCKET" && f.IsReply() || !known && w.Whole {
		return
	}
	if !known {
		host = fmt.Sprintf("network namespace %d", d.Netns)
	}
	w.live.Miss(doctor.Drop{Host: host, Dev: d.Dev, Reason: d.Reason, Function: d.Function, Back: f.Between(w.Dst, w.Src), Packets: 1, Frame: f.Brief()})
}
