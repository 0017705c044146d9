package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
)

func TestFights(t *testing.T) {
	want := netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}
	repair := netstate.Plan{{Was: netstate.Sysctl{Name: want.Name, Value: "0"}, Want: want}}
	now := time.Now()
	var f fights
	for range fightLimit - 1 {
		f.note(repair, now)
		if f.held(want.Key(), now) {
			t.Fatal("held before the limit")
		}
	}
	f.note(repair, now)
	if !f.held(want.Key(), now.Add(fightFirst-time.Millisecond)) || f.held(want.Key(), now.Add(fightFirst)) {
		t.Errorf("not held for just %s", fightFirst)
	}
	if fresh := f.fresh(); len(fresh) != 1 || fresh[0] != want.String() {
		t.Errorf("reported %q", fresh)
	}
	if fresh := f.fresh(); len(fresh) != 0 {
		t.Errorf("reported twice: %q", fresh)
	}
	later := now.Add(fightFirst)
	for range fightLimit {
		f.note(repair, later)
	}
	if !f.held(want.Key(), later.Add(2*fightFirst-time.Millisecond)) {
		t.Error("the second time does not wait twice as long")
	}
}

func TestFightsLeavesSlowRepairsAndNewWishesAlone(t *testing.T) {
	now := time.Now()
	var f fights
	for i := range 10 * fightLimit {
		want := netstate.Sysctl{Name: "slow", Value: "1"}
		f.note(netstate.Plan{{Want: want}}, now.Add(time.Duration(i)*fightWindow/2))
		if f.held(want.Key(), now.Add(time.Duration(i)*fightWindow/2)) {
			t.Fatal("a slow repair is held")
		}
	}
	for i := range 10 * fightLimit {
		want := netstate.Route{Dst: prefixes("10.244.1.0/24")[0], Dev: "eth1", Metric: 0, Extra: time.Duration(i).String()}
		f.note(netstate.Plan{{Want: want}}, now)
		if f.held(want.Key(), now) {
			t.Fatal("a new wish is held")
		}
	}
}

// TestFightsOfACrowd: entries of peers are counted as repairs in a plan that is about single peers only, and what is not about
// peers in any.
func TestFightsOfACrowd(t *testing.T) {
	now := time.Now()
	for size, held := range map[int]bool{1000: true, 1001: false} {
		var f fights
		plan := netstate.Plan{{Want: netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}}}
		for i := range size - 1 {
			plan = append(plan, netstate.Change{Want: netstate.Neigh{Dev: "flannel.1", IP: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i)})}})
		}
		for range fightLimit {
			f.note(plan, now)
		}
		if !f.held(plan[0].Key(), now) || f.held(plan[1].Key(), now) != held {
			t.Errorf("in a plan of %d changes: the sysctl is held %t, a neighbour %t", size, f.held(plan[0].Key(), now), f.held(plan[1].Key(), now))
		}
	}
}

func TestFightsForgets(t *testing.T) {
	now := time.Now()
	var f fights
	f.note(netstate.Plan{{Want: netstate.Sysctl{Name: "a"}}}, now)
	f.note(netstate.Plan{{Want: netstate.Sysctl{Name: "b"}}}, now.Add(time.Hour))
	if len(f.keys) != 1 {
		t.Errorf("%d keys remembered, want 1", len(f.keys))
	}
}
