package watch

import (
	"fmt"

	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/packet"
)

// Record is what was seen.
type Record struct {
	Views  []View   // of the places, in their order
	Unread []string // what could not be watched, and why

	NoDrops []string // why drops were not watched, which matters only if packets are lost
}

// View is what was seen in one place, in the order of time.
type View struct {
	Place
	Frames []packet.Sighting
	Drops  []drops.Drop
	Hits   []locate.Hit
	Traced bool // rules were watched
}

// While watches while a function runs.
func While(o Options, do func() error) (Record, error) {
	w, err := Start(o)
	if err != nil {
		return Record{}, err
	}
	defer w.Close()
	if err := do(); err != nil {
		return Record{}, err
	}
	return w.record(o.Match)
}

// record ends watching, and reads what was seen.
func (w *Watch) record(match func(packet.Frame) bool) (r Record, err error) {
	if match == nil {
		match = func(packet.Frame) bool { return true }
	}
	if w.noDrops != nil {
		r.NoDrops = append(r.NoDrops, fmt.Sprintf("the kernel's reasons for dropping packets: %v", w.noDrops))
	}
	dropped, err := w.Drops()
	if err != nil {
		r.NoDrops = append(r.NoDrops, err.Error())
	}
	err = w.Frames(func(at int, c packet.Captured) error {
		p := w.places[at]
		if s := c.Sighting(p.Host); match(s.Frame) {
			p.Frames = append(p.Frames, s)
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	w.each((*place).readRules)
	for _, p := range w.places {
		for _, d := range dropped {
			if d.Host == p.Host && match(packet.DecodeStart(d.Packet)) {
				p.Drops = append(p.Drops, d)
			}
		}
		r.Views, r.Unread = append(r.Views, p.View), append(r.Unread, p.unread...)
	}
	return r, nil
}

// trace begins to watch rules.
func (p *place) trace(pairs []ruletrace.Pair) {
	err := p.Do(func() (err error) {
		p.tracer, err = ruletrace.Start(pairs)
		return err
	})
	if p.Traced = err == nil; !p.Traced {
		p.miss("the rules that packets meet", err)
	}
}

// readRules reads which rules packets met, and notes what could not be watched.
func (p *place) readRules() {
	if !p.Traced {
		return
	}
	err := p.Do(func() (err error) {
		p.Hits, err = p.tracer.Stop()
		return err
	})
	if err != nil {
		p.miss("the rules that packets met", err)
	}
	for i := range p.Hits {
		p.Hits[i].Host = p.Host
	}
	for _, err := range p.tracer.Unwatched() {
		p.miss("some of the rules that packets meet", err)
	}
}

func (p *place) miss(what string, err error) {
	p.unread = append(p.unread, fmt.Sprintf("%s: %s: %v", p.Host, what, err))
}

// Explain says where and why the kernel dropped a packet.
func Explain(d drops.Drop) locate.Drop {
	f := packet.DecodeStart(d.Packet)
	e := locate.Drop{Host: d.Host, Dev: d.Dev, Reason: d.Reason, Function: d.Function, Packets: 1, Frame: f.Brief()}
	if d.Reason == "NO_SOCKET" {
		e.Unheard = f.Unheard()
	}
	return e
}

// IsHarmless reports whether a drop is no loss: an echo reply that a raw socket received, such as ping's, is also offered to
// ping sockets, of which there are none; or nobody is there that a multicast is for. A reply on its way between nodes is lost.
func IsHarmless(d drops.Drop) bool {
	f := packet.DecodeStart(d.Packet)
	ip, _ := f.Last("ip")
	return d.Reason == "NO_SOCKET" && f.IsReply() && !f.Wrapped() ||
		(d.Reason == "NOT_SPECIFIED" || d.Reason == "NO_TX_TARGET") && ip.Dst.IsMulticast()
}
