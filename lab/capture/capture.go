// Package capture writes what devices of a lab see into one pcapng file, with an interface for each device, and the
// kernel's reasons as comments on the packets that it dropped.
package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/packet"
)

// Options say what is captured.
type Options struct {
	// Devices are hosts (node1, node1/pod1, underlay), of which all devices are captured, and single devices
	// (node1/cni0). None means all of the lab.
	Devices []string
	// Filter are up to two pods, nodes or addresses: only IP packets from or to the first, or between the two, are
	// captured, encapsulated or not.
	Filter []string
	// Count ends the capture after this many packets. 0 means no limit.
	Count int
}

// Summary is what was captured.
type Summary struct {
	Devices, Hosts int
	Packets        int
	Dropped        int // drops of which the kernel said why
	Lost           int // that came faster than they could be read
	// NoReasons says why there are no reasons for drops.
	NoReasons string
}

const (
	pollInterval = 50 * time.Millisecond
	// hold is how long a packet waits for the kernel to drop it: a packet for a neighbour that does not answer is
	// dropped after three seconds.
	hold = 4 * time.Second
	// settle is how long a drop waits for its packet to be read.
	settle = 200 * time.Millisecond
)

// Capture is one that can be run once.
type Capture struct {
	summary Summary
	lab     string
	options Options
	filter  filter
	sources []*source
	drops   *drops.Watcher
	held    held
	file    *file
}

// source is a host whose packets are captured.
type source struct {
	lab.Place
	only  map[string]bool // names of devices; empty: all
	inode uint32          // of its namespace
	tap   *packet.Tap
	ids   map[int]int // of the file's interfaces, by the index of the device; -1: not captured
}

// New returns a Capture of a lab, or an error if the options name what the lab does not have.
func New(l *lab.Lab, o Options) (*Capture, error) {
	filter, err := newFilter(l, o.Filter)
	if err != nil {
		return nil, err
	}
	sources, err := choose(l, o.Devices)
	if err != nil {
		return nil, err
	}
	return &Capture{lab: l.Name(), options: o, filter: filter, sources: sources}, nil
}

// Run captures until the context ends, which is no error. It calls ready when nothing escapes it any more.
func (c *Capture) Run(ctx context.Context, w io.Writer, ready func(Summary)) (Summary, error) {
	defer c.close()
	if err := c.open(w); err != nil {
		return c.summary, err
	}
	ready(c.summary)
	for ctx.Err() == nil && !c.full() {
		if err := packet.Wait(c.taps(), pollInterval); err != nil {
			return c.summary, err
		}
		if err := c.collect(); err != nil {
			return c.summary, err
		}
		now := time.Now()
		if err := c.flush(now.Add(-settle), now.Add(-hold)); err != nil {
			return c.summary, err
		}
	}
	if err := errors.Join(c.collect(), c.countLost()); err != nil {
		return c.summary, err
	}
	end := time.Now().Add(clockSlack)
	return c.summary, c.flush(end, end)
}

func (c *Capture) open(w io.Writer) (err error) {
	if c.file, err = newFile(w, c.lab, c.options.Filter); err != nil {
		return err
	}
	c.summary.Hosts = len(c.sources)
	var inodes []uint32
	for _, s := range c.sources {
		if err := c.tap(s); err != nil {
			return fmt.Errorf("capture on %s: %w", s.Name, err)
		}
		inodes = append(inodes, s.inode)
	}
	if c.drops, err = drops.WatchNamespaces(inodes); err != nil {
		c.summary.NoReasons = err.Error()
	}
	return c.file.flush()
}

// tap begins to capture on a host, and describes its devices in the file.
func (c *Capture) tap(s *source) error {
	info, err := os.Stat(s.Host.Path())
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = uint32(stat.Ino)
	}
	err = s.Host.Do(func() (err error) {
		if s.tap, err = packet.OpenTap(); err != nil {
			return err
		}
		return s.tap.Stamp()
	})
	if err != nil {
		return err
	}
	devices, err := list(s.Host)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if err := c.describe(s, d); err != nil {
			return err
		}
	}
	return nil
}

// describe makes a device an interface of the file, if it is to be captured.
func (c *Capture) describe(s *source, d device) (err error) {
	s.ids[d.index] = -1
	if len(s.only) > 0 && !s.only[d.name] {
		return nil
	}
	c.summary.Devices++
	s.ids[d.index], err = c.file.describe(s.Name+"/"+d.name, d.ethernet)
	return err
}

func (c *Capture) taps() []*packet.Tap {
	var taps []*packet.Tap
	for _, s := range c.sources {
		taps = append(taps, s.tap)
	}
	return taps
}

func (c *Capture) full() bool { return c.options.Count > 0 && c.summary.Packets >= c.options.Count }

// collect reads what the devices saw and what the kernel dropped since.
func (c *Capture) collect() error {
	for _, s := range c.sources {
		if err := s.tap.Each(func(p packet.Captured) error { return c.take(s, p) }); err != nil {
			return fmt.Errorf("capture on %s: %w", s.Name, err)
		}
	}
	if c.drops == nil {
		return nil
	}
	dropped, err := c.drops.Read()
	for _, d := range dropped {
		if f := packet.DecodeStart(d.Packet); !harmless(d, f) && c.filter.match(f) {
			c.held.drops = append(c.held.drops, d)
		}
	}
	return err
}

// harmless reports whether a drop is no loss: watching causes it, an echo reply that a raw socket received is also
// offered to ping sockets, of which there are none, or nobody is there that a multicast is for.
func harmless(d drops.Drop, f packet.Frame) bool {
	ip, _ := f.Last("ip")
	return d.OfWatching() || d.Reason == "NO_SOCKET" && f.IsReply() && !f.Wrapped() ||
		(d.Reason == "NOT_SPECIFIED" || d.Reason == "NO_TX_TARGET") && ip.Dst.IsMulticast()
}

// take keeps a packet. A device that is new becomes an interface of the file now.
func (c *Capture) take(s *source, p packet.Captured) error {
	if c.full() || len(c.filter) > 0 && !c.filter.match(p.Decode()) {
		return nil
	}
	id, known := s.ids[p.Index]
	if !known {
		if err := c.describe(s, find(s.Host, p)); err != nil {
			return err
		}
		id = s.ids[p.Index]
	}
	if id < 0 {
		return nil
	}
	c.summary.Packets++
	c.held.add(s, id, p)
	return nil
}

// flush writes the packets that were captured before a time, and what became of them.
func (c *Capture) flush(settled, until time.Time) error {
	for _, d := range c.held.attach(c.sources, settled) {
		c.summary.Dropped++
		if d.record != nil {
			continue
		}
		if err := c.addDrop(d); err != nil {
			return err
		}
	}
	for _, r := range c.held.before(until) {
		if err := c.file.write(r); err != nil {
			return err
		}
	}
	return c.file.flush()
}

// addDrop keeps a dropped packet that no device saw: one that was made or changed on the way.
func (c *Capture) addDrop(d attached) error {
	id, err := c.file.dropsOf(d.source.Name)
	if err != nil {
		return err
	}
	c.held.addDrop(id, d)
	return nil
}

func (c *Capture) countLost() error {
	for _, s := range c.sources {
		lost, err := s.tap.Lost()
		if err != nil {
			return err
		}
		c.summary.Lost += int(lost)
	}
	return nil
}

// close stops watching drops first: closing a tap drops the packets that wait in it.
func (c *Capture) close() {
	if c.drops != nil {
		_ = c.drops.Close()
	}
	for _, s := range c.sources {
		if s.tap != nil {
			_ = s.tap.Close() // a packet socket has nothing to lose
		}
	}
}
