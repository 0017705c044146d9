package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Live is what became of the real packets between two pods during a while.
type Live struct {
	Seconds float64 `json:"seconds"`
	There   []Sight `json:"there"` // in the order in which a packet was seen first
	Back    []Sight `json:"back"`
	Drops   []Drop  `json:"drops"`
	// Ends are the hosts at which packets begin and end, if both were watched; else empty.
	Ends [2]string `json:"ends"`
	// Gone says where all of the packets went missing, if two nodes watched their own part each.
	Gone string `json:"gone,omitempty"`
	// NoReasons says why the kernel was not asked for the drops.
	NoReasons string `json:"noReasons,omitempty"`
}

// Sight is one device that packets were seen on.
type Sight struct {
	Host    string `json:"host"`
	Dev     string `json:"dev"`
	Out     bool   `json:"out"`
	Packets int    `json:"packets"`
	Frame   string `json:"frame"` // the first one's headers, without MACs and TTL
}

// Drop is a place in the kernel that threw packets away.
type Drop struct {
	Host     string `json:"host"`
	Dev      string `json:"dev"`
	Reason   string `json:"reason"`   // the kernel's word, of enum skb_drop_reason
	Function string `json:"function"` // of the kernel
	Back     bool   `json:"back"`     // it was on its way back
	Packets  int    `json:"packets"`
	Frame    string `json:"frame"`
}

// See adds packets to the sightings.
func (l *Live) See(back bool, s Sight) {
	list := &l.There
	if back {
		list = &l.Back
	}
	for i := range *list {
		if o := &(*list)[i]; o.Host == s.Host && o.Dev == s.Dev && o.Out == s.Out {
			o.Packets += s.Packets
			return
		}
	}
	*list = append(*list, s)
}

// Miss adds dropped packets.
func (l *Live) Miss(d Drop) {
	for i := range l.Drops {
		if o := &l.Drops[i]; o.Host == d.Host && o.Dev == d.Dev && o.Reason == d.Reason && o.Function == d.Function && o.Back == d.Back {
			o.Packets += d.Packets
			return
		}
	}
	l.Drops = append(l.Drops, d)
}

// Trouble says whether packets were lost. Of packets whose end was not watched only drops tell.
func (l Live) Trouble() bool {
	_, lost := l.Lost()
	return len(l.Drops) > 0 || l.Gone != "" || l.Ends[0] != "" && lost
}

// lost is how many of the packets did not come to a host.
func (l Live) lost(way []Sight, end string) int {
	if len(way) == 0 {
		return 0
	}
	i := slices.IndexFunc(way, func(s Sight) bool { return s.Host == end })
	if i < 0 {
		return way[0].Packets
	}
	return max(0, way[0].Packets-way[i].Packets)
}

// Lost is the last device that packets were seen on, of which some did not get to their end; false if none was lost.
func (l Live) Lost() (last Sight, lost bool) {
	if len(l.There) == 0 {
		return Sight{Host: l.Ends[0]}, true
	}
	if n := l.lost(l.There, l.Ends[1]); n > 0 {
		return lastOf(l.There, n), true
	}
	if n := l.lost(l.Back, l.Ends[0]); n > 0 {
		return lastOf(l.Back, n), true
	}
	if len(l.Back) == 0 {
		return l.There[len(l.There)-1], true
	}
	return last, false
}

func (l Live) write(b *strings.Builder, src, dst string) {
	fmt.Fprintf(b, "\nreal packets during %.1f s, %s → %s\n", l.Seconds, src, dst)
	writeSights(b, l.There)
	if len(l.Back) > 0 {
		fmt.Fprintf(b, "%s → %s\n", dst, src)
		writeSights(b, l.Back)
	}
	for _, d := range l.Drops {
		fmt.Fprintf(b, "✗ %s drops %d: %s\n  %s\n", d.Host, d.Packets, d.cause(), d.Frame)
		if r, ok := reasons[d.Reason]; ok {
			fmt.Fprintf(b, "  %s%s\n", r.says, r.more())
		}
	}
	if l.NoReasons != "" {
		fmt.Fprintf(b, "! the kernel's own reasons are not known: %s\n", l.NoReasons)
	}
	fmt.Fprintln(b, l.verdict())
}

func writeSights(b *strings.Builder, all []Sight) {
	if len(all) == 0 {
		fmt.Fprintln(b, "  none was seen")
	}
	before := ""
	for _, s := range all {
		frame := s.Frame
		if frame == before {
			frame = ""
		}
		before = s.Frame
		way := "in"
		if s.Out {
			way = "out"
		}
		fmt.Fprintln(b, strings.TrimRight(fmt.Sprintf("  %-12s %-3s %-16s %4d  %s", s.Host, way, s.Dev, s.Packets, frame), " "))
	}
}

func (d Drop) cause() string {
	text := d.Reason
	if d.Function != "" {
		text += " in " + d.Function
	}
	if d.Dev != "" {
		text += ", on " + d.Dev
	}
	return text
}

// verdict is the result in one line.
func (l Live) verdict() string {
	switch {
	case len(l.There) == 0 && len(l.Back) == 0 && l.Ends[0] != "":
		return "✗ no packet leaves " + l.Ends[0]
	case len(l.There) == 0 && len(l.Back) == 0:
		return "! no packet between them was seen: is there any traffic?"
	case l.Gone != "":
		return "✗ " + l.Gone
	case l.Ends[0] == "" && len(l.Drops) > 0:
		return "✗ packets are dropped where it was watched"
	case l.Ends[0] == "":
		return "✓ no packet was seen to be dropped where it was watched"
	case l.lost(l.There, l.Ends[1]) > 0:
		return "✗ " + lastSeen(l.There, l.lost(l.There, l.Ends[1]))
	case len(l.Back) == 0:
		return "✗ all arrive, and none is answered"
	case l.lost(l.Back, l.Ends[0]) > 0:
		return "✗ all arrive; of the replies " + lastSeen(l.Back, l.lost(l.Back, l.Ends[0]))
	}
	return "✓ all arrive, and so do the replies"
}

// lastOf is the last device that more packets passed than were lost after it.
func lastOf(way []Sight, lost int) Sight {
	last := way[0]
	for _, s := range way {
		if s.Packets > way[0].Packets-lost {
			last = s
		}
	}
	return last
}

func lastSeen(way []Sight, lost int) string {
	return fmt.Sprintf("%d of %d were seen last on %s", lost, way[0].Packets, lastOf(way, lost))
}

func (s Sight) String() string {
	if s.Out {
		return s.Host + ", leaving through " + s.Dev
	}
	return s.Host + ", coming in through " + s.Dev
}
