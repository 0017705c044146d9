package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

func TestParseIperf(t *testing.T) {
	for _, c := range []struct {
		report       string
		bytes, gbits float64
		err          string
	}{
		{`{"end":{"sum_sent":{"bytes":9},"sum_received":{"bytes":2.5e9,"bits_per_second":2e10}}}`, 2.5e9, 20, ""},
		{`{"start":{},"error":"unable to connect to server"}`, 0, 0, "unable to connect"},
		{`{"end":{}}`, 0, 0, "nothing was received"},
		{``, 0, 0, "read iperf3's report"},
	} {
		bytes, gbits, err := parseIperf(c.report)
		if bytes != c.bytes || gbits != c.gbits || !says(err, c.err) {
			t.Errorf("%s: %v, %v, %v", c.report, bytes, gbits, err)
		}
	}
}

// says reports whether an error has the words, or is none if there are none.
func says(err error, words string) bool {
	if words == "" || err == nil {
		return words == "" && err == nil
	}
	return strings.Contains(err.Error(), words)
}

func TestParseOff(t *testing.T) {
	for report, want := range map[string]string{
		`{"node":"node1"}`:                       "the agent says nothing of a fast path",
		`{"fastPath":{"on":true}}`:               "",
		`{"fastPath":{"on":false,"why":"no x"}}`: "no x",
	} {
		if got, err := parseOff(report); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", report, got, err, want)
		}
	}
	if _, err := parseOff("no"); err == nil {
		t.Error("no error from what is not JSON")
	}
}

func TestCounts(t *testing.T) {
	read := func(packets ...uint64) counts {
		c := fastpath.Counts{}
		for i, r := range []fastpath.Count{{Program: netstate.FromPod, Result: "encap", Fast: true},
			{Program: netstate.ToPod, Result: "encap", Fast: true}, {Program: netstate.FromPod, Result: "flags"},
			{Program: netstate.ToPod, Result: "flags"}, {Program: netstate.ToPod, Result: "state"}} {
			r.Packets = packets[i]
			c.Results = append(c.Results, r)
		}
		return byResult(c)
	}
	for _, c := range []struct {
		before, now counts
		want        string
	}{
		{read(100, 0, 50, 0, 0), read(1000, 1000, 75, 25, 50), "95.0 % of 2000 packets took the fast path"},
		{read(0, 0, 0, 0, 9), read(1, 0, 1, 0, 11), "25.0 % of 4 packets took the fast path, so these figures are not the fast path's; most others: state"},
		{counts{}, counts{}, "0.0 % of 0 packets took the fast path, so these figures are not the fast path's"},
	} {
		var sum counts
		sum.add(c.now, c.before)
		if got := sum.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestSummary(t *testing.T) {
	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(200-i)*time.Microsecond)
	}
	want := exchange{rate: 100, p50: 101 * time.Microsecond, p99: 199 * time.Microsecond, lost: 3}
	if got := summary(took, 2*time.Second, 3); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := summary(nil, time.Second, 1); got != (exchange{lost: 1}) {
		t.Errorf("%+v of nothing", got)
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-rounds", "1", "-seconds", "3", "-variants", "plain", "-write", "x.svg"}, t.Output())
	if err != nil || o.rounds != 1 || o.seconds != 3 || len(o.variants) != 4 || o.write != "x.svg" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse(nil, t.Output()); err != nil || o.rounds != 9 || len(o.variants) != 8 || o.write != "" {
		t.Errorf("by default %+v, %v", o, err)
	}
	for _, args := range []string{"-rounds 0", "-seconds 0", "vxlan", "-variants udp"} {
		if _, err := parse(strings.Fields(args), t.Output()); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}
