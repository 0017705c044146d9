package main

import (
	"strings"
	"testing"
	"time"
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

func TestParseCounts(t *testing.T) {
	const metrics = `# TYPE twill_fastpath_packets_total counter
twill_fastpath_packets_total{program="from_pod",result="encap"} 900
twill_fastpath_packets_total{program="to_pod",result="vtep"} 1e+03
twill_fastpath_packets_total{program="from_pod",result="no-ct"} 50
twill_fastpath_packets_total{program="from_pod",result="flags"} 50
twill_fastpath_bytes_total{program="from_pod",result="encap"} 90000
twill_ready 1
`
	got, err := parseCounts(metrics)
	if want := (counts{1900, 100}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if text := got.String(); text != "95.0 % of 2000 packets took the fast path" {
		t.Error(text)
	}
	if text := (counts{1, 3}).String(); text != "25.0 % of 4 packets took the fast path, so these figures are not the fast path's" {
		t.Error(text)
	}
	if text := (counts{}).String(); !strings.HasPrefix(text, "0.0 % of 0 packets") || !strings.HasSuffix(text, "not the fast path's") {
		t.Error(text)
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
