package filter

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// large is a table of one family with many chains of ten rules, each of which has a pod of the map, and sets with many
// elements.
func large(chains, elements int) netstate.State {
	state := netstate.NewState(
		netstate.Hook{Family: netstate.IPv4, Rules: "ct reply established accept\nct related accept\njump ingress"},
		netstate.Filter{Family: netstate.IPv4, Name: "ingress", Rules: "daddr vmap @ingress"},
		netstate.Set{Family: netstate.IPv4, Name: "ingress", Type: netstate.Verdicts})
	for i := range 10 {
		state.Add(netstate.Set{Family: netstate.IPv4, Name: fmt.Sprintf("pods-%d", i), Type: netstate.Addresses})
	}
	for i := range elements {
		state.Add(netstate.Element{Set: fmt.Sprintf("pods-%d", i%10), Prefix: pod(i)})
	}
	for i := range chains {
		rules := ""
		for j := range 9 {
			rules += fmt.Sprintf("saddr @pods-%d tcp dport %d accept\n", j, i+j)
		}
		name := fmt.Sprintf("in-%d", i)
		state.Add(netstate.Filter{Family: netstate.IPv4, Name: name, Rules: rules + "counter drop"},
			netstate.Element{Set: "ingress", Prefix: pod(i), Verdict: "goto " + name})
	}
	return state
}

func pod(i int) netip.Prefix {
	return netstate.Host(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
}

// BenchmarkLoad writes 1,000 chains of ten rules, and 10,000 elements.
func BenchmarkLoad(b *testing.B) {
	if !inNamespace(b) {
		return
	}
	f, plan := open(b), netstate.Diff(large(1000, 10000), nil)
	clean := netstate.Diff(nil, large(1000, 10000))
	for b.Loop() {
		apply(b, f, plan)
		b.StopTimer()
		apply(b, f, clean)
		b.StartTimer()
	}
}

// BenchmarkObserve reads that.
func BenchmarkObserve(b *testing.B) {
	if !inNamespace(b) {
		return
	}
	for _, size := range [][2]int{{1, 100}, {1000, 10000}, {1, 50000}} {
		b.Run(fmt.Sprintf("chains=%d/elements=%d", size[0], size[1]), func(b *testing.B) {
			f, want := open(b), large(size[0], size[1])
			settle(b, f, want)
			for b.Loop() {
				observe(b, f, want)
			}
		})
	}
}

// BenchmarkElement adds and deletes an element of a set of many.
func BenchmarkElement(b *testing.B) {
	if !inNamespace(b) {
		return
	}
	f, want := open(b), large(1, 100000) // 10,000 in each of ten
	settle(b, f, want)
	e := netstate.Element{Set: "pods-1", Prefix: pod(1 << 20)}
	for b.Loop() {
		apply(b, f, netstate.Plan{{Want: e}})
		apply(b, f, netstate.Plan{{Was: e}})
	}
}

// BenchmarkFlip lets a pod go to another chain, twice, among 1,000 chains.
func BenchmarkFlip(b *testing.B) {
	if !inNamespace(b) {
		return
	}
	f, want := open(b), large(1000, 10000)
	settle(b, f, want)
	was := netstate.Element{Set: "ingress", Prefix: pod(1), Verdict: "goto in-1"}
	next := netstate.Element{Set: "ingress", Prefix: pod(1), Verdict: "goto in-2"}
	for b.Loop() {
		apply(b, f, netstate.Plan{{Was: was, Want: next}})
		apply(b, f, netstate.Plan{{Was: next, Want: was}})
	}
}

func apply(t testing.TB, f *Filter, plan netstate.Plan) {
	t.Helper()
	if err := f.Apply(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}
