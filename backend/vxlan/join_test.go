package vxlan

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twill-net/twill/subnet"
)

// TestJoined: what Joined says is what Desired says, wherever among so few subnets, addresses and MACs the new peers stand
// that many are claimed twice.
func TestJoined(t *testing.T) {
	taken := 0
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBackend(t, []string{"", `{"Type":"vxlan","DirectRouting":true}`}[random.IntN(2)])
		peers := make([]subnet.Lease, 2+random.IntN(5))
		for i := range peers {
			peers[i] = anyone(random, i)
		}
		all := subnet.Snapshot{Local: lease(1, "46"), Peers: peers}
		first, second := random.IntN(len(peers)), random.IntN(len(peers))
		before, more := all, []subnet.Lease(nil)
		before.Peers = nil
		for i, p := range peers {
			if i == first || i == second {
				more = append(more, p)
			} else {
				before.Peers = append(before.Peers, p)
			}
		}
		state, ok := b.(Backend).Joined(node("46"), before, more)
		if !ok {
			continue
		}
		taken++
		was, wasSkips := b.Desired(node("46"), before)
		want, skips := b.Desired(node("46"), all)
		was.Merge(state)
		if !maps.Equal(was, want) || !slices.Equal(wasSkips, skips) {
			t.Fatalf("seed %d: %v joins %v:\n%sleft out %v\nand Desired says\n%sleft out %v", seed, more, before.Peers, was, wasSkips, want, skips)
		}
		if len(state) == 0 {
			t.Fatalf("seed %d: %v asks for nothing", seed, more)
		}
	}
	if taken < 300 {
		t.Errorf("only %d of 3000 joins needed no Desired: that proves little", taken)
	}
}

// anyone is a peer out of ten with somebody's subnet, address and MAC.
func anyone(random *rand.Rand, i int) subnet.Lease {
	n := func() int { return 1 + random.IntN(10) }
	l := lease(n(), []string{"4", "6", "46"}[random.IntN(3)])
	l.Node = fmt.Sprint("peer", i)
	for i := range l.Stacks {
		at, _ := lease(n(), "46").Stack(l.Stacks[i].Is4())
		l.Stacks[i].Underlay = at.Underlay
		l.Stacks[i].Data = json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:04:%02x"}`, n()))
	}
	if random.IntN(10) == 0 {
		l.Backend = "host-gw"
	}
	return l
}
