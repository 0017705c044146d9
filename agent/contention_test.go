package agent

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
)

func TestContention(t *testing.T) {
	want := netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}
	repair := netstate.Plan{{Was: netstate.Sysctl{Name: want.Name, Value: "0"}, Want: want}}
	now := time.Now()
	var f contention
	for range contentionLimit - 1 {
		f.record(repair, now)
		if f.suppressed(want.Key(), now) {
			t.Fatal("held before the limit")
		}
	}
	f.record(repair, now)
	if !f.suppressed(want.Key(), now.Add(firstSuppression-time.Millisecond)) || f.suppressed(want.Key(), now.Add(firstSuppression)) {
		t.Errorf("not held for just %s", firstSuppression)
	}
	if fresh := f.unreported(); len(fresh) != 1 || fresh[0] != want.String() {
		t.Errorf("reported %q", fresh)
	}
	if fresh := f.unreported(); len(fresh) != 0 {
		t.Errorf("reported twice: %q", fresh)
	}
	later := now.Add(firstSuppression)
	for range contentionLimit - 1 {
		f.record(repair, later)
	}
	if f.suppressed(want.Key(), later) {
		t.Error("held again before the limit")
	}
	f.record(repair, later)
	for hold := 2 * firstSuppression; ; hold = min(2*hold, lastSuppression) {
		if !f.suppressed(want.Key(), later.Add(hold-time.Millisecond)) || f.suppressed(want.Key(), later.Add(hold)) {
			t.Errorf("it does not wait for %s, twice as long as before, up to %s", hold, lastSuppression)
		}
		if hold == lastSuppression {
			break
		}
		later = later.Add(hold)
		for range contentionLimit {
			f.record(repair, later)
		}
	}
}

func TestContentionLeavesSlowRepairsAndNewWishesAlone(t *testing.T) {
	now := time.Now()
	var f contention
	for i := range 10 * contentionLimit {
		want := netstate.Sysctl{Name: "slow", Value: "1"}
		f.record(netstate.Plan{{Want: want}}, now.Add(time.Duration(i)*contentionWindow/2))
		if f.suppressed(want.Key(), now.Add(time.Duration(i)*contentionWindow/2)) {
			t.Fatal("a slow repair is held")
		}
	}
	for i := range 10 * contentionLimit {
		want := netstate.Route{Dst: prefixes("10.244.1.0/24")[0], Dev: "eth1", Metric: 0, Extra: time.Duration(i).String()}
		f.record(netstate.Plan{{Want: want}}, now)
		if f.suppressed(want.Key(), now) {
			t.Fatal("a new wish is held")
		}
	}
}

// TestContentionOfACrowd: entries of peers are counted as repairs in a plan that is about single
// peers only, and what is not about peers in any.
func TestContentionOfACrowd(t *testing.T) {
	now := time.Now()
	for size, held := range map[int]bool{1000: true, 1001: false} {
		var f contention
		plan := netstate.Plan{{Want: netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}}}
		for i := range size - 1 {
			plan = append(plan, netstate.Change{Want: netstate.Neigh{Dev: "flannel.1", IP: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i)})}})
		}
		for range contentionLimit {
			f.record(plan, now)
		}
		if !f.suppressed(plan[0].Key(), now) || f.suppressed(plan[1].Key(), now) != held {
			t.Errorf("in a plan of %d changes: the sysctl is held %t, a neighbour %t", size, f.suppressed(plan[0].Key(), now), f.suppressed(plan[1].Key(), now))
		}
	}
}

func TestContentionForgets(t *testing.T) {
	now := time.Now()
	var f contention
	f.record(netstate.Plan{{Want: netstate.Sysctl{Name: "a"}}}, now)
	f.record(netstate.Plan{{Want: netstate.Sysctl{Name: "b"}}}, now.Add(time.Hour))
	if len(f.keys) != 1 {
		t.Errorf("%d keys remembered, want 1", len(f.keys))
	}
}

// TestReportContention: who sets a device down all the time, and takes its route along, is one line.
func TestReportContention(t *testing.T) {
	var log bytes.Buffer
	a := New(Config{Planner: Planner{Node: "node1"}, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(prometheus.NewRegistry()),
		Store: &reporter{}})
	link, route := netstate.Bridge{Name: "cni0"}, netstate.Route{Dev: "cni0", Dst: netip.MustParsePrefix("10.244.2.0/24")}
	for range contentionLimit {
		a.loop.contention.record(netstate.Plan{{Want: route}, {Want: link}}, time.Now())
	}
	a.reportContention()
	a.reportContention()
	if want := `node=node1 object="` + link.String() + `" more_objects=1` + "\n"; !strings.HasSuffix(log.String(), want) || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged\n%swant one line that ends in\n%s", log.String(), want)
	}
	if events := a.Store.(*reporter).events; len(events) != 1 {
		t.Errorf("the events are %q", events)
	}
}
