// Package capture writes what devices of some network namespaces see into one pcapng file, with an interface for each device, and the
// kernel's reasons as comments on the packets that it dropped.
package capture

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/packet"
)

// Options say what is captured.
type Options struct {
	Sources []Source
	Filter  Filter
	Count   int    // the capture ends after so many packets; 0: it does not
	About   string // a comment in the file
}

// Source is a place whose packets are captured.
type Source struct {
	watch.Place
	Only []string // names of devices; empty: all
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
	// hold is how long a packet waits for the kernel to drop it: a packet for a neighbour that does not answer is
	// dropped after three seconds.
	hold = 4 * time.Second
	// settle is how long a drop waits for its packet to be read.
	settle = 200 * time.Millisecond
)

// Capture is one that can be run once.
type Capture struct {
	summary Summary
	options Options
	sources []*source
	watch   *watch.Watch
	held    held
	file    *file
}

// source is a Source, and what the file has of it.
type source struct {
	Source
	ids map[int]int // of the file's interfaces, by the index of the device; -1: not captured
}

// New returns a Capture.
func New(o Options) *Capture {
	c := &Capture{options: o}
	for _, s := range o.Sources {
		c.sources = append(c.sources, &source{s, map[int]int{}})
	}
	return c
}

// Run captures until the context ends, which is no error. It calls ready when nothing escapes it any more.
func (c *Capture) Run(ctx context.Context, w io.Writer, ready func(Summary)) (_ Summary, err error) {
	o := watch.Options{Drops: true, Times: true}
	for _, s := range c.sources {
		o.Places = append(o.Places, s.Place)
	}
	if c.watch, err = watch.Start(o); err != nil {
		return c.summary, err
	}
	defer c.watch.Close()
	if err := c.open(w); err != nil {
		return c.summary, err
	}
	ready(c.summary)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = c.watch.Until(ctx, func() error {
		if err := c.collect(); err != nil {
			return err
		}
		if c.full() {
			stop()
		}
		now := time.Now()
		return c.flush(now.Add(-settle), now.Add(-hold))
	})
	if err != nil {
		return c.summary, err
	}
	if c.summary.Lost, err = c.watch.Lost(); err != nil {
		return c.summary, err
	}
	end := time.Now().Add(clockSlack)
	return c.summary, c.flush(end, end)
}

// open begins the file with the devices.
func (c *Capture) open(w io.Writer) (err error) {
	if c.file, err = newFile(w, c.options.About); err != nil {
		return err
	}
	c.summary.Hosts = len(c.sources)
	for _, s := range c.sources {
		devices, err := list(s.Place)
		if err != nil {
			return err
		}
		for _, d := range devices {
			if err := c.describe(s, d); err != nil {
				return err
			}
		}
	}
	if err := c.watch.NoDrops(); err != nil {
		c.summary.NoReasons = err.Error()
	}
	return c.file.flush()
}

// describe makes a device an interface of the file, if it is to be captured.
func (c *Capture) describe(s *source, d device) (err error) {
	s.ids[d.index] = -1
	if len(s.Only) > 0 && !slices.Contains(s.Only, d.name) {
		return nil
	}
	c.summary.Devices++
	s.ids[d.index], err = c.file.describe(s.Host+"/"+d.name, d.ethernet)
	return err
}

func (c *Capture) full() bool { return c.options.Count > 0 && c.summary.Packets >= c.options.Count }

// collect reads what the devices saw and what the kernel dropped since.
func (c *Capture) collect() error {
	if err := c.watch.Frames(func(at int, p packet.Captured) error { return c.take(c.sources[at], p) }); err != nil {
		return err
	}
	dropped, err := c.watch.Drops()
	for _, d := range dropped {
		if !watch.IsHarmless(d) && c.options.Filter.match(packet.DecodeStart(d.Packet)) {
			c.held.drops = append(c.held.drops, d)
		}
	}
	return err
}

// take keeps a packet. A device that is new becomes an interface of the file now.
func (c *Capture) take(s *source, p packet.Captured) error {
	if c.full() || len(c.options.Filter) > 0 && !c.options.Filter.match(p.Decode()) {
		return nil
	}
	id, known := s.ids[p.Index]
	if !known {
		if err := c.describe(s, find(s.Place, p)); err != nil {
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
	id, err := c.file.dropsOf(d.source.Host)
	if err != nil {
		return err
	}
	c.held.addDrop(id, d)
	return nil
}
