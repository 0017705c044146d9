package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// peersOf makes the leases of nodes 1 to n.
func peersOf(n int) (all []subnet.Lease) {
	for i := 1; i <= n; i++ {
		all = append(all, subnet.Lease{Node: fmt.Sprint("node", i), Stacks: []subnet.Stack{{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Underlay: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})}}})
	}
	return all
}

func lines(h History) string {
	var b strings.Builder
	for _, e := range h.Events {
		fmt.Fprintf(&b, "%s %s %s %d\n", e.Kind, e.Peer, e.Text, e.Count)
	}
	return b.String()
}

// TestHistory: what leases ask for is a change, and what is written for the same leases again is a repair.
func TestHistory(t *testing.T) {
	var h history
	h.start("vxlan")
	first := &subnet.Snapshot{Peers: peersOf(2)}
	h.follow(first)
	route := netstate.Change{Want: netstate.Route{Dst: netip.MustParsePrefix("10.0.1.0/24"), Dev: "flannel.1"}}
	h.applied(first, netstate.Plan{route, route}, time.Millisecond, nil)
	h.settled = first
	h.applied(first, netstate.Plan{route}, time.Millisecond, errors.New("device gone\nand more"))
	second := &subnet.Snapshot{Peers: peersOf(3)[1:]}
	second.Peers[0].Stacks[0].Underlay = netip.MustParseAddr("192.168.9.9")
	h.follow(second)
	const want = `start  the agent started, with the backend vxlan 0
change  + route 10.0.1.0/24 dev flannel.1 proto 0, and 1 more 2
repair  + route 10.0.1.0/24 dev flannel.1 proto 0 0
error  device gone 0
lease node2 moved: 10.0.2.0/24 at 192.168.9.9, before 10.0.2.0/24 at 192.168.0.2 0
lease node3 joined: 10.0.3.0/24 at 192.168.0.3 0
lease node1 left: 10.0.1.0/24 at 192.168.0.1 0
`
	if got := lines(h.report("me")); got != want {
		t.Errorf("it remembers\n%swant\n%s", got, want)
	}
}

// TestHistoryBounds: neither an hour nor a thousand events are exceeded, and the same error is one event.
func TestHistoryBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h history
		h.start("vxlan")
		time.Sleep(remembered - time.Minute)
		for range 5 {
			h.add(Event{Kind: "error", Text: "no route"})
		}
		time.Sleep(2 * time.Minute)
		r := h.report("me")
		if len(r.Events) != 1 || r.Events[0].Count != 5 || time.Since(r.Since) != remembered {
			t.Errorf("after an hour it remembers %+v, want the error alone, five times", r)
		}
		for i := range 2 * maxEvents {
			h.add(Event{Kind: "change", Text: strings.Repeat(fmt.Sprint(i), 1000)})
		}
		r = h.report("me")
		if len(r.Events) != maxEvents || r.Dropped != maxEvents+1 || len(r.Events[0].Text) > 600 || !r.Since.Equal(r.Events[0].At) {
			t.Errorf("it remembers %d events and dropped %d, the first of %d bytes, since %v", len(r.Events), r.Dropped, len(r.Events[0].Text), r.Since)
		}
	})
}

// TestHistoryOfMany: a change of all leases is a few events.
func TestHistoryOfMany(t *testing.T) {
	t.Parallel()
	var h history
	h.follow(&subnet.Snapshot{})
	h.follow(&subnet.Snapshot{Peers: peersOf(500)})
	got := h.report("me").Events
	if len(got) != maxLeaseRows+1 || got[maxLeaseRows].Count != 480 {
		t.Errorf("500 leases are %d events, the last of them %+v; want %d, and the rest as one", len(got), got[len(got)-1], maxLeaseRows)
	}
}

// TestHistoryHandler asks as the doctor does.
func TestHistoryHandler(t *testing.T) {
	t.Parallel()
	a := New(Config{Planner: Planner{Node: "node1"}, Log: slog.New(slog.DiscardHandler)})
	a.history.start("vxlan")
	w := httptest.NewRecorder()
	a.Handler(prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/history", nil))
	var r History
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || r.Node != "node1" || len(r.Events) != 1 {
		t.Errorf("/history answers %s (%v)", w.Body, err)
	}
}

// BenchmarkHistory notes one lease of 5,000 that moves, and its change.
func BenchmarkHistory(b *testing.B) {
	var h history
	both := []*subnet.Snapshot{{Peers: peersOf(5000)}, {Peers: peersOf(5000)}}
	both[1].Peers[2500].Stacks[0].Underlay = netip.MustParseAddr("192.168.200.200")
	plan := netstate.Plan{{Want: netstate.Route{Dst: netip.MustParsePrefix("10.0.1.0/24"), Dev: "flannel.1"}}}
	i := 0
	for b.Loop() {
		i++
		h.follow(both[i%2])
		h.applied(both[i%2], plan, time.Millisecond, nil)
	}
}
