package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/packet"
)

// Traffic is what became of real packets of a flow.
type Traffic struct {
	Seconds float64       `json:"seconds"`
	Forward []Sighting    `json:"there"` // in the order in which a packet was seen first
	Back    []Sighting    `json:"back"`
	Drops   []locate.Drop `json:"drops"`
	// Ends are the hosts at which packets begin and end, if both were watched; else empty.
	Ends [2]string `json:"ends"`
	// Gone says where all of the packets were lost, if two nodes each watched their own part.
	Gone string `json:"gone,omitempty"`
	// NoReasons says why the kernel was not asked for drops.
	NoReasons string `json:"noReasons,omitempty"`
}

// Sighting is a device that packets were seen on.
type Sighting struct {
	packet.Point
	Packets int    `json:"packets"`
	Frame   string `json:"frame"` // the headers of the first one, without MAC addresses and TTL
}

// Failed reports whether packets were lost. If their end was not watched, only drops count.
func (t Traffic) Failed() bool {
	_, lost := t.Lost()
	return len(t.Drops) > 0 || t.Gone != "" || t.Ends[0] != "" && lost
}

// MarshalJSON adds the result in one line, as the text has it, and whether packets were lost.
func (t Traffic) MarshalJSON() ([]byte, error) {
	type fields Traffic
	return json.Marshal(struct {
		fields
		Failed  bool   `json:"failed"`
		Verdict string `json:"verdict"`
	}{fields(t), t.Failed(), t.verdict()})
}

// lost returns how many of the packets did not get to a host.
func lost(path []Sighting, end string) int {
	if len(path) == 0 {
		return 0
	}
	i := slices.IndexFunc(path, func(s Sighting) bool { return s.Host == end })
	if i < 0 {
		return path[0].Packets
	}
	return max(0, path[0].Packets-path[i].Packets)
}

// Lost returns the last device on which packets were seen of which some did not get to their end, and whether any
// were lost.
func (t Traffic) Lost() (last Sighting, any bool) {
	if len(t.Forward) == 0 {
		return Sighting{Point: packet.Point{Host: t.Ends[0]}}, true
	}
	if n := lost(t.Forward, t.Ends[1]); n > 0 {
		return lastOf(t.Forward, n), true
	}
	if n := lost(t.Back, t.Ends[0]); n > 0 {
		return lastOf(t.Back, n), true
	}
	if len(t.Back) == 0 {
		return t.Forward[len(t.Forward)-1], true
	}
	return last, false
}

// lastOf returns the last device that more packets passed than were lost after it.
func lastOf(path []Sighting, lost int) Sighting {
	last := path[0]
	for _, s := range path {
		if s.Packets > path[0].Packets-lost {
			last = s
		}
	}
	return last
}

func (t Traffic) write(b *strings.Builder, src, dst string) {
	fmt.Fprintf(b, "\nreal packets during %.1f s, %s → %s\n", t.Seconds, src, dst)
	writeSightings(b, t.Forward)
	if len(t.Back) > 0 {
		fmt.Fprintf(b, "%s → %s\n", dst, src)
		writeSightings(b, t.Back)
	}
	for _, d := range t.Drops {
		fmt.Fprintf(b, "✗ %s drops %d: %s\n  %s\n", d.Host, d.Packets, d, d.Frame)
		switch r, ok := dropReasons[d.Reason]; {
		case d.Unheard != "":
			fmt.Fprintf(b, "  %s at %s\n", d.Unheard, d.Host)
		case ok:
			fmt.Fprintln(b, " ", r)
		}
	}
	if t.NoReasons != "" {
		fmt.Fprintf(b, "! the kernel's own reasons are not known: %s\n", t.NoReasons)
	}
	fmt.Fprintln(b, t.verdict())
}

func writeSightings(b *strings.Builder, all []Sighting) {
	if len(all) == 0 {
		fmt.Fprintln(b, "  none was seen")
	}
	before := ""
	for _, s := range all {
		frame, direction := s.Frame, "in"
		if frame == before {
			frame = ""
		}
		if s.Out {
			direction = "out"
		}
		before = s.Frame
		line := fmt.Sprintf("  %-12s %-3s %-16s %4d  %s", s.Host, direction, s.Dev, s.Packets, frame)
		fmt.Fprintln(b, strings.TrimRight(line, " "))
	}
}

// verdict returns the result in one line.
func (t Traffic) verdict() string {
	lastSeen := func(path []Sighting, n int) string {
		return fmt.Sprintf("%d of %d were seen last on %s", n, path[0].Packets, lastOf(path, n))
	}
	lostForward, lostBack := lost(t.Forward, t.Ends[1]), lost(t.Back, t.Ends[0])
	switch {
	case len(t.Forward) == 0 && len(t.Back) == 0 && t.Ends[0] != "":
		return "✗ no packet leaves " + t.Ends[0]
	case len(t.Forward) == 0 && len(t.Back) == 0:
		return "! no packet between them was seen: is there any traffic?"
	case t.Gone != "":
		return "✗ " + t.Gone
	case t.Ends[0] == "" && len(t.Drops) > 0:
		return "✗ packets are dropped where it was watched"
	case t.Ends[0] == "":
		return "✓ no packet was seen to be dropped where it was watched"
	case lostForward > 0:
		return "✗ " + lastSeen(t.Forward, lostForward)
	case len(t.Back) == 0:
		return "✗ all arrive, and none is answered"
	case lostBack > 0:
		return "✗ all arrive; of the replies " + lastSeen(t.Back, lostBack)
	}
	return "✓ all arrive, and so do the replies"
}

// joinTraffic puts what two nodes saw in the order of the path. They did not begin at the same moment, so their
// counts differ.
func joinTraffic(near, far *Traffic) *Traffic {
	if near == nil || far == nil {
		return near
	}
	t := Traffic{Seconds: max(near.Seconds, far.Seconds), Forward: append(near.Forward, far.Forward...),
		Back: append(far.Back, near.Back...), Drops: append(near.Drops, far.Drops...),
		NoReasons: cmp.Or(near.NoReasons, far.NoReasons)}
	switch {
	case len(near.Forward) > 0 && len(far.Forward) == 0:
		t.Gone = "none came to the other node; seen last on " + near.Forward[len(near.Forward)-1].String()
	case len(far.Back) > 0 && len(near.Back) == 0:
		t.Gone = "no reply came to the sender's node; seen last on " + far.Back[len(far.Back)-1].String()
	case len(far.Forward) > 0 && len(t.Back) == 0:
		t.Gone = "no reply was seen; seen last on " + far.Forward[len(far.Forward)-1].String()
	}
	return &t
}
