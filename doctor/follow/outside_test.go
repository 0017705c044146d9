package follow

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/packet"
)

var gateway, outside = netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("203.0.113.2")

// outward is a network of two pods of a node, with what is to be reached outside.
func outward(addrs ...netip.Addr) Network {
	here := watch.Here("n1")
	n := Network{Pods: []Pod{{Place: watch.Place{Host: "n1/p1"}, Deputy: here, Node: "n1", Addrs: []netip.Addr{a}},
		{Place: watch.Place{Host: "n1/p2"}, Deputy: here, Node: "n1", Addrs: []netip.Addr{b}}}}
	n.ToOutside(doctor.Facts{Node: "n1", Interfaces: []netstate.Interface{{Default: []netstate.Family{netstate.IPv4}, Gateways: []netip.Addr{gateway}}}}, addrs...)
	return n
}

// TestToOutside: each pod pings the gateway and what is outside, which send nothing. Without either that is said.
func TestToOutside(t *testing.T) {
	var got []string
	for _, try := range outward(outside).tries() {
		if try.From.Host == try.To.Host || try.To.Do != nil && strings.Contains(try.To.Host, "outside") {
			t.Errorf("got %v", try)
		}
		if try.To.Host != "n1/p1" && try.To.Host != "n1/p2" {
			got = append(got, try.String())
		}
	}
	want := `ICMP from n1/p1 (10.244.1.2) to gateway (192.0.2.254)
ICMP from n1/p1 (10.244.1.2) to outside 203.0.113.2 (203.0.113.2)
ICMP from n1/p2 (10.244.2.2) to gateway (192.0.2.254)
ICMP from n1/p2 (10.244.2.2) to outside 203.0.113.2 (203.0.113.2)`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got %s", text)
	}
	for _, addrs := range [][]netip.Addr{nil, {outside}} {
		var n Network
		if n.ToOutside(doctor.Facts{Node: "n1"}, addrs...); len(n.Notes) != 1-len(addrs) || len(n.Pods) != len(addrs) {
			t.Errorf("%v: got %+v", addrs, n)
		}
	}
}

// TestExcuse: a gateway that answers nobody is no loss, unless packets to it are lost on the node.
func TestExcuse(t *testing.T) {
	n := outward(outside)
	lost := func(dst netip.Addr, host string, pod int) probe.Result {
		return probe.Result{Err: errors.New("no answer"), Try: probe.Try{From: n.Pods[pod].Place, To: watch.Place{Host: host}, Src: n.Pods[pod].Addrs[0], Dst: dst, Kind: probe.ICMP}}
	}
	all := []probe.Result{lost(gateway, "gateway", 0), lost(gateway, "gateway", 1), lost(outside, "outside 203.0.113.2", 0)}
	loss := func(dst netip.Addr, unanswered bool) locate.Loss {
		return locate.Loss{Flow: locate.Flow{Dst: dst}, Unanswered: unanswered, Last: "n1, leaving through eth0"}
	}
	for name, test := range map[string]struct {
		losses   []locate.Loss
		answered map[exit]bool
		left     int // losses
		lost     int // probes
		notes    int
	}{
		"both are quiet":       {[]locate.Loss{loss(gateway, true), loss(outside, true)}, nil, 1, 1, 1},
		"a pod is cut off":     {[]locate.Loss{loss(gateway, true), loss(gateway, false)}, nil, 2, 3, 0},
		"it takes connections": {nil, map[exit]bool{{"n1", outside}: true}, 0, 2, 0},
	} {
		r := Report{Results: append([]probe.Result{}, all...), Lost: append([]probe.Result{}, all...), Losses: test.losses}
		n.excuse(&r, Report{answered: test.answered})
		failed := 0
		for _, x := range r.Results {
			if x.Err != nil {
				failed++
			}
		}
		if len(r.Losses) != test.left || len(r.Lost) != test.lost || failed != test.lost || len(r.Notes) != test.notes {
			t.Errorf("%s: got %d losses, %d lost, %d failed, notes %v", name, len(r.Losses), len(r.Lost), failed, r.Notes)
		}
	}
}

// TestAnswered: a connection counts if packets are seen to come in from there: a rule of the node's own may reset it, too.
func TestAnswered(t *testing.T) {
	n := outward(outside)
	to := probe.Try{From: n.Pods[0].Place, To: watch.Place{Host: "outside 203.0.113.2"}, Src: a, Dst: outside}
	seen := func(host string, out bool) watch.Record {
		s := packet.Sighting{Point: packet.Point{Host: host, Dev: "eth0", Out: out}, Frame: packet.Frame{Layers: []packet.Layer{{Kind: "ip", Src: outside}, {Kind: "tcp"}}}}
		return watch.Record{Views: []watch.View{{Place: watch.Here(host), Frames: []packet.Sighting{s}}}}
	}
	no := errors.New("no answer")
	for name, test := range map[string]struct {
		knocked error
		seen    watch.Record
		want    int // still lost
	}{
		"it comes in, and to the pod": {nil, seen("n1", false), 0},
		"it does not get to the pod":  {no, seen("n1", false), 1},
		"the node made it":            {nil, seen("n1", true), 1},
		"only the pod saw it":         {nil, seen("n1/p1", false), 1},
	} {
		still, by := n.answered([]probe.Result{{Try: to, Err: no}}, []probe.Result{{Try: to, Err: test.knocked}}, test.seen)
		if len(still) != test.want || by[exit{"n1", outside}] != (test.want == 0) {
			t.Errorf("%s: got %v, %v", name, still, by)
		}
	}
}
