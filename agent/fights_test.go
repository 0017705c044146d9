package agent

import (
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

func TestFightsForgets(t *testing.T) {
	now := time.Now()
	var f fights
	f.note(netstate.Plan{{Want: netstate.Sysctl{Name: "a"}}}, now)
	f.note(netstate.Plan{{Want: netstate.Sysctl{Name: "b"}}}, now.Add(time.Hour))
	if len(f.keys) != 1 {
		t.Errorf("%d keys remembered, want 1", len(f.keys))
	}
}
