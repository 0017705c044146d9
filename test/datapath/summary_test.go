package main

import (
	"bytes"
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
)

var update = flag.Bool("update", false, "write the files in testdata")

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{9, 1, 5, 6}, 5.5},
	} {
		before := slices.Clone(c.values)
		if got := median(c.values); got != c.want || !slices.Equal(c.values, before) {
			t.Errorf("median of %v is %v, want %v; it left %v", before, got, c.want, c.values)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v, want NaN", got)
	}
}

// TestRatios: a ratio is taken in each round, so that a round on a slow machine counts like another.
func TestRatios(t *testing.T) {
	at := func(node, pod float64) pair { return pair{sample{gbits: node}, sample{gbits: pod}} }
	g := group{"vxlan", netstate.IPv4}
	r := results{
		g.variant(false): {at(10, 5), at(1, 0.6), at(10, 7)},
		g.variant(true):  {at(10, 9), at(1, 0.9), at(10, 7)},
	}
	of := measures[0].of
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"plain of node", r.ofNode(g.variant(false), of), 0.6},
		{"fast of node", r.ofNode(g.variant(true), of), 0.9},
		{"fast of plain", r.ofPlain(g, of), 1.5},
		{"nodes", r.node(g, of), 10},
		{"plain pods", r.pods(g.variant(false), of), 5},
	} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

// example has every group but the last, and no fast path with IPv6.
func example() results {
	at := func(by float64) sample {
		us := func(x float64) time.Duration { return time.Duration(x / by * float64(time.Microsecond)) }
		return sample{gbits: 20 * by, cpu: 0.4 / by, connects: 9000 * by,
			tcp: exchange{rate: 50000 * by, p50: us(18), p99: us(60)}, udp: exchange{rate: 60000 * by, p50: us(15), p99: us(50)}}
	}
	r := results{}
	for i, v := range []variant{{"vxlan", false, netstate.IPv4}, {"vxlan", true, netstate.IPv4}, {"vxlan", false, netstate.IPv6},
		{"host-gw", false, netstate.IPv4}, {"host-gw", true, netstate.IPv4}} {
		for round := range 3 {
			r[v] = append(r[v], pair{at(1 + float64(round)/10), at(0.5 + float64(i+round)/10)})
		}
	}
	return r
}

func TestTables(t *testing.T) { golden(t, "testdata/tables.md", example().tables()) }

func TestChart(t *testing.T) {
	var b bytes.Buffer
	if err := example().writeChart(&b, "made up < measured"); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/chart.svg", b.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; if it should, run the test with -update:\n%s", path, got)
	}
}

func TestFigure(t *testing.T) {
	for x, want := range map[float64]string{0.5: "0.50", 9.994: "9.99", 9.996: "10.0", 99.96: "100", 987: "987", 1234: "1,234", 1234567: "1,234,567"} {
		if got := figure(x); got != want {
			t.Errorf("figure of %v is %q, want %q", x, got, want)
		}
	}
}

func TestParseClock(t *testing.T) {
	got, err := parseClock("cpu  100 20 30 4000 5 6 7 800 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
	if want := (clock{1630 * time.Millisecond, 40050 * time.Millisecond}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := parseClock("intr 5"); err == nil {
		t.Errorf("no error, but %+v", got)
	}
	if got := (clock{time.Second, 3 * time.Second}).share(); got != 0.25 {
		t.Errorf("a share of %v, want 0.25", got)
	}
}

func TestChoose(t *testing.T) {
	for list, want := range map[string]string{
		"":                                "vxlan/plain/ipv4 vxlan/fast/ipv4 vxlan/plain/ipv6 vxlan/fast/ipv6 host-gw/plain/ipv4 host-gw/fast/ipv4 host-gw/plain/ipv6 host-gw/fast/ipv6",
		"vxlan/fast":                      "vxlan/fast/ipv4 vxlan/fast/ipv6",
		"ipv4/host-gw":                    "host-gw/plain/ipv4 host-gw/fast/ipv4",
		"vxlan/fast/ipv6,plain/vxlan":     "vxlan/plain/ipv4 vxlan/plain/ipv6 vxlan/fast/ipv6",
		"host-gw/plain/ipv6,plain/vxlan/": "",
		"udp":                             "",
		"fast/plain":                      "",
	} {
		got, err := choose(list)
		var names []string
		for _, v := range got {
			names = append(names, v.String())
		}
		if strings.Join(names, " ") != want || (err == nil) != (want != "") {
			t.Errorf("%q: %v, %v, want %s", list, names, err, want)
		}
	}
}

func TestTurned(t *testing.T) {
	all := allVariants()
	first := map[variant]bool{}
	for round := range len(all) {
		now := turned(all, round)
		first[now[0]] = true
		slices.SortFunc(now, func(a, b variant) int { return slices.Index(all, a) - slices.Index(all, b) })
		if !slices.Equal(now, all) {
			t.Errorf("round %d has %v", round, now)
		}
	}
	if len(first) != len(all) {
		t.Errorf("only %d variants were ever the first", len(first))
	}
}
