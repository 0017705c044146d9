package subnet

import (
	"net/netip"
	"testing"
)

func TestAllocate(t *testing.T) {
	pools := []Pool{
		testPool("10.5.0.0/16", 24, "10.5.0.0", "10.5.3.0"),
		testPool("fd00::/48", 64, "fd00::", "fd00:0:0:3::"),
	}
	want := Lease{Node: "a", Stacks: []Stack{{Underlay: netip.MustParseAddr("192.0.2.1")}, {Underlay: netip.MustParseAddr("2001:db8::1")}}}
	first, err := Allocate(pools, want, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := Allocate(pools, want, nil); !again.Equal(first) {
		t.Errorf("the same node got %v, then %v", first, again)
	}
	other, err := Allocate(pools, first, []netip.Prefix{first.Stacks[0].Subnet})
	if err != nil || other.Stacks[0].Subnet == first.Stacks[0].Subnet || other.Stacks[1].Subnet != first.Stacks[1].Subnet {
		t.Errorf("%v is in use: got %v %v", first.Stacks[0].Subnet, other, err)
	}
	wide := []Pool{testPool("10.0.0.0/8", 24, "10.0.0.0", "10.255.255.0")}
	places := map[netip.Prefix]bool{}
	for _, l := range []Lease{
		{Node: "a", Stacks: want.Stacks[:1]}, {Node: "b", Stacks: want.Stacks[:1]},
		{Node: "a", Stacks: []Stack{{Underlay: netip.MustParseAddr("192.0.2.2")}}}, // as flannel's nodes that are all called localhost
	} {
		got, err := Allocate(wide, l, nil)
		if err != nil {
			t.Fatal(err)
		}
		places[got.Stacks[0].Subnet] = true
	}
	if len(places) != 3 {
		t.Errorf("three nodes begin at %v, want three places", places)
	}
	wish := want
	wish.Stacks = []Stack{want.Stacks[0], want.Stacks[1]}
	wish.Stacks[0].Subnet = netip.MustParsePrefix("10.9.0.0/24")
	if got, err := Allocate(pools, wish, nil); err != nil || !got.Equal(first) {
		t.Errorf("a wish outside of the network: got %v %v, want %v", got, err, first)
	}
	for _, wished := range []string{"10.5.0.0/24", "10.5.1.0/24"} { // where the node would begin to look is one of them at most
		wish.Stacks[0].Subnet = netip.MustParsePrefix(wished)
		if got, err := Allocate(pools, wish, prefixes("10.5.2.0/24")); err != nil || got.Stacks[0].Subnet != wish.Stacks[0].Subnet {
			t.Errorf("a wish that is free: got %v %v, want %s", got, err, wished)
		}
	}
	_, err = Allocate(pools, want, prefixes("10.5.0.0/22"))
	if want := "all 4 subnets of 10.5.0.0/16 are in use: remove stale leases or use a larger network"; err == nil || err.Error() != want {
		t.Errorf("full: got %v, want %s", err, want)
	}
	for _, stacks := range [][]Stack{want.Stacks[:1], want.Stacks[1:], append(want.Stacks[:2:2], want.Stacks[0])} {
		if _, err := Allocate(pools, Lease{Node: "a", Stacks: stacks}, nil); err == nil {
			t.Errorf("stacks %v do not match the pools, and there is no error", stacks)
		}
	}
}
