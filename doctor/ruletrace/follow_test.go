package ruletrace

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// looks returns the header of a packet from A to an address.
func looks(ttl byte, to netip.Addr) packet {
	header := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, ttl, 1, 0, 0}
	header = append(header, a4.AsSlice()...)
	return packet{network: append(header, to.AsSlice()...)}
}

// TestFollow: who rewrote a packet, from messages alone.
func TestFollow(t *testing.T) {
	pre, other := nfnl.Place{Family: unix.NFPROTO_IPV4, Table: "fw", Chain: "pre"}, nfnl.Place{Family: unix.NFPROTO_IPV4, Table: "fw", Chain: "other"}
	begin, end := nfnl.Place{Family: unix.NFPROTO_INET, Table: "twill-trace-1", Chain: "mark"}, nfnl.Place{Family: unix.NFPROTO_INET, Table: "twill-trace-1", Chain: "end-prerouting"}
	writesTTL := []write{{layer: networkLayer, offset: 8, length: 2}}
	set := ruleset{map[nfnl.Place]*chain{
		pre: {hook: "prerouting", rules: []rule{{handle: 1}, {handle: 2, effect: effect{writes: writesTTL}},
			{handle: 3, effect: effect{writes: named(translated...)}}, {handle: 4, effect: effect{writes: named()}}}},
		other: {rules: []rule{{handle: 5, effect: effect{writes: writesTTL}}}},
	}, nil}
	at := func(p nfnl.Place, handle uint64, look packet) event {
		return event{Place: p, id: 1, kind: unix.NFT_TRACETYPE_RULE, handle: handle, verdict: verdictContinue, packet: look}
	}
	drop := at(pre, 1, packet{})
	drop.verdict = verdictDrop
	none, x := packet{}, netip.MustParseAddr("10.2.0.9")
	for name, c := range map[string]struct {
		events []event
		want   []string // "" for each rule that rewrites nothing
	}{
		"nothing":                   {[]event{at(begin, 9, looks(64, b4)), at(pre, 1, looks(64, b4)), at(end, 0, looks(64, b4))}, []string{""}},
		"the first rule":            {[]event{at(begin, 9, looks(64, b4)), at(pre, 2, looks(1, b4)), at(end, 0, looks(1, b4))}, []string{"ttl 64 to 1"}},
		"the second rule":           {[]event{at(begin, 9, looks(64, b4)), at(pre, 1, looks(64, b4)), at(pre, 2, none), at(pre, 1, none), at(end, 0, looks(1, b4))}, []string{"", "ttl 64 to 1", ""}},
		"the last of two":           {[]event{at(begin, 9, looks(64, b4)), at(pre, 1, looks(64, b4)), at(pre, 2, none), at(other, 5, none), at(end, 0, looks(1, b4))}, []string{"", "", "ttl 64 to 1"}},
		"translation":               {[]event{at(begin, 9, looks(64, b4)), at(pre, 3, looks(64, b4)), at(end, 0, looks(64, x))}, []string{"daddr 10.2.0.2 to 10.2.0.9"}},
		"two fields":                {[]event{at(begin, 9, looks(64, b4)), at(pre, 4, looks(3, x)), at(end, 0, looks(3, x))}, []string{"ttl 64 to 3, daddr 10.2.0.2 to 10.2.0.9"}},
		"the kernel":                {[]event{at(begin, 9, looks(64, b4)), at(pre, 3, looks(64, b4)), at(end, 0, looks(63, b4))}, []string{""}},
		"another packet, same ID":   {[]event{at(begin, 9, looks(64, b4)), at(pre, 1, looks(64, b4)), at(pre, 2, none), at(begin, 9, looks(1, b4))}, []string{"", ""}},
		"another packet after drop": {[]event{at(begin, 9, looks(64, b4)), at(pre, 2, looks(64, b4)), drop, at(pre, 2, looks(1, b4))}, []string{"", "", ""}},
		"of others":                 {[]event{at(pre, 2, looks(64, netip.MustParseAddr("10.7.0.1")))}, nil},
	} {
		var got []string
		for _, m := range follow(c.events, set, scope{"twill-trace-1", map[netip.Addr]bool{b4: true}}) {
			got = append(got, m.rewriting())
			if m.hook != "prerouting" && m.Chain != "other" {
				t.Errorf("%s: hook %q", name, m.hook)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestLimit: what stops or rewrites is kept.
func TestLimit(t *testing.T) {
	var hits []locate.Hit
	for i := range 1000 {
		h := locate.Hit{Verdict: "continue", Proto: byte(i % 250), Stops: i == 990}
		hits = append(hits, h, h)
	}
	got := limit(hits)
	if len(got) != maxHits || !slices.ContainsFunc(got, func(h locate.Hit) bool { return h.Stops }) || got[0].Proto != 0 || got[1].Proto != 1 {
		t.Errorf("got %d: %+v", len(got), got[:3])
	}
}
