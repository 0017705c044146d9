package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// sample is what was measured between two hosts at one time.
type sample struct {
	gbits    float64 // one TCP stream: Gbit/s
	cpu      float64 // the whole machine's processor seconds for a GB of it
	tcp, udp exchange
	connects float64 // connections a second, each with a byte and its answer
}

// exchange is a byte and its answer, again and again over one flow.
type exchange struct {
	rate     float64 // a second
	p50, p99 time.Duration
	lost     int
}

// pair is a sample between two pods, and one between their nodes just before.
type pair struct{ node, pod sample }

// results are the pairs of each variant, a round each.
type results map[variant][]pair

// measure is one figure of a sample.
type measure struct {
	name  string // in the chart
	title string // in tables
	of    func(sample) float64
	lower bool // the lower the better
}

// The measures, in the order of the tables' columns. The chart leaves out latencies.
var measures = []measure{
	{"TCP throughput", "Gbit/s", func(s sample) float64 { return s.gbits }, false},
	{"CPU seconds for a GB", "CPU s/GB", func(s sample) float64 { return s.cpu }, true},
	{"TCP questions/s", "TCP_RR/s", func(s sample) float64 { return s.tcp.rate }, false},
	{"", "p50 µs", func(s sample) float64 { return micro(s.tcp.p50) }, true},
	{"", "p99 µs", func(s sample) float64 { return micro(s.tcp.p99) }, true},
	{"UDP questions/s", "UDP_RR/s", func(s sample) float64 { return s.udp.rate }, false},
	{"", "p50 µs", func(s sample) float64 { return micro(s.udp.p50) }, true},
	{"", "p99 µs", func(s sample) float64 { return micro(s.udp.p99) }, true},
	{"Connections/s", "TCP_CRR/s", func(s sample) float64 { return s.connects }, false},
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// median returns the middle of the values, or the mean of the two in the middle; NaN of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// node is the median of a measure between nodes, in both variants of a group.
func (r results) node(g group, of func(sample) float64) float64 {
	var values []float64
	for _, p := range slices.Concat(r[g.variant(false)], r[g.variant(true)]) {
		values = append(values, of(p.node))
	}
	return median(values)
}

// pods is the median of a measure between a variant's pods.
func (r results) pods(v variant, of func(sample) float64) float64 {
	var values []float64
	for _, p := range r[v] {
		values = append(values, of(p.pod))
	}
	return median(values)
}

// ofNode is the median of the rounds' ratios between pods and their nodes: what slows the machine down for a while slows
// down both.
func (r results) ofNode(v variant, of func(sample) float64) float64 {
	var ratios []float64
	for _, p := range r[v] {
		ratios = append(ratios, of(p.pod)/of(p.node))
	}
	return median(ratios)
}

// ofPlain is the median of the rounds' ratios between the fast and the plain path.
func (r results) ofPlain(g group, of func(sample) float64) float64 {
	plain, fast := r[g.variant(false)], r[g.variant(true)]
	var ratios []float64
	for i := range min(len(plain), len(fast)) {
		ratios = append(ratios, of(fast[i].pod)/of(plain[i].pod))
	}
	return median(ratios)
}

// groups are those that have results, in their usual order.
func (r results) groups() []group {
	var groups []group
	for _, v := range allVariants() {
		if len(r[v]) > 0 && !slices.Contains(groups, v.group()) {
			groups = append(groups, v.group())
		}
	}
	return groups
}

func (p pair) String() string {
	return fmt.Sprintf("pods %s; nodes %s", p.pod, p.node)
}

func (s sample) String() string {
	return fmt.Sprintf("%.1f Gbit/s, %.2f CPU s/GB, %.0f TCP_RR/s, %.0f UDP_RR/s, %.0f TCP_CRR/s",
		s.gbits, s.cpu, s.tcp.rate, s.udp.rate, s.connects)
}
