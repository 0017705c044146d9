package fastpath

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// BenchmarkObserve: a node of a large cluster.
func BenchmarkObserve(b *testing.B) {
	s := newSpace(b)
	s.ip("link add flannel.1 type bridge")
	var p *Provider
	var err error
	s.do(func() { p, err = Open(s.dir) })
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	want := netstate.State{}
	for i := range 5000 {
		o := netstate.Shortcut{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Mode: netstate.ThroughVTEP, Dev: "flannel.1", From: "flannel.1", MTU: 1450}
		want.Add(o)
		if err := p.Apply(netstate.Change{Want: o}); err != nil {
			b.Fatal(err)
		}
	}
	for name, want := range map[string]netstate.State{"all": want, "poll": nil} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var have netstate.State
				s.do(func() { have, err = p.Observe(nil, want) })
				if err != nil || len(have) != len(want) {
					b.Fatalf("%d objects, %v", len(have), err)
				}
			}
		})
	}
}
