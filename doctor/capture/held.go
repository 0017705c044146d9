package capture

import (
	"bytes"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/packet"
)

// maxHeld is how many bytes of packets may wait for their drops.
const maxHeld = 64 << 20

// record is a packet of the file.
type record struct {
	source   *source
	id       int // of the file's interface
	dev      int // index of the device
	kind     uint8
	time     time.Time
	length   int
	data     []byte
	ip       []byte // data from the header behind Ethernet's on
	dropped  bool   // it is known from its drop only
	comments []string
}

// held are the packets that wait to be written, and the drops that wait to be told of them.
type held struct {
	records []*record
	drops   []drops.Drop
	size    int
}

func (h *held) add(s *source, id int, p packet.Captured) {
	r := &record{source: s, id: id, dev: p.Index, kind: p.Type, time: p.Time, length: p.Length, data: bytes.Clone(p.Data)}
	if r.ip = r.data; packet.HasEthernet(p.Hardware) {
		r.ip = r.data[min(len(r.data), ethernetSize):]
	}
	h.records = append(h.records, r)
	h.size += len(r.data)
}

// attached is a drop with the last captured packet that it is about, if there is one.
type attached struct {
	drops.Drop
	source *source
	record *record
}

// attach comments on the packets that were dropped before a time, and returns their drops. What is neither an IP packet
// nor captured is left out.
func (h *held) attach(sources []*source, until time.Time) []attached {
	h.sort()
	var done []attached
	h.drops = slices.DeleteFunc(h.drops, func(d drops.Drop) bool {
		if d.Time.After(until) {
			return false
		}
		i := slices.IndexFunc(sources, func(s *source) bool { return s.Host == d.Host })
		if i < 0 {
			return true
		}
		a := attached{d, sources[i], h.last(d, sources[i])}
		if a.record != nil {
			a.record.comment(d)
		}
		if a.record != nil || lengthOf(d.Packet) > 0 {
			done = append(done, a)
		}
		return true
	})
	return done
}

// sort orders the packets by time. Those of one host that have the same time stay as they came.
func (h *held) sort() {
	slices.SortStableFunc(h.records, func(a, b *record) int { return a.time.Compare(b.time) })
}

// clockSlack is by how much the clocks of drops and of packets may differ.
const clockSlack = time.Millisecond

// last returns the last packet that the host saw of the one it dropped.
func (h *held) last(d drops.Drop, s *source) *record {
	for _, r := range slices.Backward(h.records) {
		if r.source == s && !r.dropped && !r.time.After(d.Time.Add(clockSlack)) && samePacket(r.ip, d.Packet) {
			return r
		}
	}
	return nil
}

// addDrop keeps a packet that is known from its drop only, as far as it is known.
func (h *held) addDrop(id int, d attached) {
	length := lengthOf(d.Packet)
	r := &record{source: d.source, id: id, time: d.Time, length: length, dropped: true,
		data: d.Packet[:min(length, len(d.Packet))]}
	r.comment(d.Drop)
	h.records = append(h.records, r)
	h.size += len(r.data)
}

// before takes out the packets that are older than a time, and as many more as there is no room for.
func (h *held) before(until time.Time) []*record {
	h.sort()
	n := 0
	for n < len(h.records) && (h.records[n].time.Before(until) || h.size > maxHeld) {
		h.size -= len(h.records[n].data)
		n++
	}
	out := h.records[:n:n]
	h.records = h.records[n:]
	return out
}

// comment says why the kernel dropped the packet.
func (r *record) comment(d drops.Drop) {
	text := "dropped here: " + watch.Explain(d).String()
	if !slices.Contains(r.comments, text) { // a broadcast is dropped once for each port
		r.comments = append(r.comments, text)
	}
}
