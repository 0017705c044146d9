package backend

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestHoldingsLengths: each length of subnets counts once, however many have it.
func TestHoldingsLengths(t *testing.T) {
	var snap subnet.Snapshot
	for i := range 100 {
		snap.Peers = append(snap.Peers, subnet.Lease{Node: fmt.Sprint("p", i), Stacks: []subnet.Stack{{},
			{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24+i/50)}}})
	}
	h := newHoldings(snap)
	if got := h.lengths[netstate.IPv4]; !slices.Equal(got, []int{24, 25}) || len(h.lengths[netstate.IPv6]) > 0 {
		t.Errorf("lengths %v, want 24 and 25", h.lengths)
	}
}
