package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
)

// TestGateways: of each family the router in use, unless pods cannot send to it.
func TestGateways(t *testing.T) {
	f := healthy()
	f.Interfaces = []netstate.Interface{
		{Name: "eth0", Default: []netstate.Family{netstate.IPv4, netstate.IPv6}, Gateways: []netip.Addr{addr("fe80::1"), addr("192.0.2.254"), addr("192.0.2.253")}},
		{Name: "eth1", Gateways: []netip.Addr{addr("198.51.100.1")}}, // of a default route that is not preferred
	}
	if got := f.Gateways(); !slices.Equal(got, []netip.Addr{addr("192.0.2.254")}) {
		t.Errorf("got %v", got)
	}
}

// TestMasquerades: as the rules say that the agent wants, the first that is about the packet.
func TestMasquerades(t *testing.T) {
	f := healthy()
	pods, exempt := prefix("10.244.0.0/16"), prefix("192.168.0.0/16")
	c := netstate.Chain{Family: netstate.IPv4, Role: netstate.Postrouting, Rules: [netstate.MaxRules]netstate.Rule{
		{Mark: 0x4000, Verdict: netstate.Return}, {Src: prefix("10.244.1.0/24"), Dst: pods, Verdict: netstate.Return}, {Src: pods, Dst: exempt, Verdict: netstate.Return},
		{Src: pods, NotDst: prefix("224.0.0.0/4"), Verdict: netstate.MasqueradeRandom}}}
	f.Want = netstate.State{c.Key(): c}
	for dst, want := range map[string]bool{"203.0.113.2": true, "192.168.33.1": false, "10.244.2.2": false, "224.0.0.5": false} {
		if got := f.Masquerades(addr("10.244.1.2"), addr(dst)); got != want {
			t.Errorf("to %s: got %v", dst, got)
		}
	}
	if f.Masquerades(addr("fd00::2"), addr("2001:db8::1")) || f.Masquerades(addr("172.16.0.1"), addr("203.0.113.2")) {
		t.Error("nobody asked for these")
	}
}

// TestTraceToOutside: what stops a packet to the outside is a step, and a finding.
func TestTraceToOutside(t *testing.T) {
	out := OutPath{To: addr("203.0.113.2"), Hop: Hop{Dev: "eth0", Via: addr("192.0.2.254")}}
	drop := rules.Chain{Family: "ip", Table: "fw", Name: "c", Hook: "forward", Policy: rules.Accept,
		Rules: []rules.Rule{{Proto: "icmp", Out: rules.DevMatch{Name: "eth0"}, Verdict: rules.Drop, Text: "drop"}}}
	tcp := drop
	tcp.Rules = []rules.Rule{{Proto: "tcp", Out: rules.DevMatch{Name: "eth0"}, Verdict: rules.Drop, Text: "drop"}}
	for name, test := range map[string]struct {
		alter func(*Facts)
		stop  string // the place
		id    string
	}{
		"nothing":      {func(*Facts) {}, "", ""},
		"no route":     {func(f *Facts) { f.Out[0].Hop = Hop{Error: "network is unreachable"} }, "route", "outside-unrouted"},
		"a firewall's": {func(f *Facts) { f.Chains = []rules.Chain{drop} }, "forward rules", "forward-rejected"},
		"of TCP alone": {func(f *Facts) { f.Chains = []rules.Chain{tcp} }, "", ""},
	} {
		f := healthy()
		f.Out = []OutPath{out}
		test.alter(&f)
		id := ""
		if found := Check(f); len(found) > 0 {
			id = found[0].ID
		}
		got := FollowOut(f, Flow{Src: addr("10.244.1.2"), Dst: out.To, From: "n1"})
		stop := ""
		if got.Stopped != nil {
			stop = got.Stopped.Place
		}
		if stop != test.stop || id != test.id || (len(got.Back) == 0) != (stop != "") {
			t.Errorf("%s: stops at %q, want %q; finding %q, want %q: %+v", name, stop, test.stop, id, test.id, got)
		}
	}
}

// TestOutsideIsNoted: what is no fault is said, and a loss behind the node is a risk.
func TestOutsideIsNoted(t *testing.T) {
	lost := locate.Loss{Flow: locate.Flow{Src: addr("10.244.1.2"), Dst: addr("203.0.113.2"), Sent: "ICMP", Error: "no answer"}, Host: "n1", Last: "n1, leaving through eth0", Unanswered: true}
	s := NewSurvey([]Diagnosis{Diagnose(healthy(), 0)}, nil, Probes{Sent: 2, Lost: 1, Notes: []string{"the gateway is quiet"}}, Lost{Followed: []locate.Loss{lost}})
	var b strings.Builder
	if err := s.WriteText(&b); err != nil || s.First == nil || s.First.ID != "outside-unanswered" || s.First.Severity != Risk || s.First.Object != "203.0.113.2" ||
		!strings.Contains(b.String(), "? the gateway is quiet\n") {
		t.Errorf("got %v, %+v: %s", err, s.First, b.String())
	}
	// Rules that the agent misses explain that packets keep a pod's address.
	d := Diagnosis{Node: "n1", Findings: []Finding{{ID: string(masqueradeMissing), Severity: Broken}}}
	d.Add(Probes{Sent: 1, Lost: 1, Notes: []string{"the gateway is quiet"}}, Lost{Followed: []locate.Loss{{Flow: lost.Flow, Host: "n1", Unmasked: true, Exact: true, By: locate.Object{Text: "masquerading"}}}})
	if len(d.Findings) != 1 || !d.Findings[0].Likely || len(d.Notes) != 1 {
		t.Errorf("got %+v", d)
	}
}
