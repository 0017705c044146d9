//go:build vm

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// BenchmarkInTurns compares the backends on a kernel that carries all of them, with the kernel's wireguard.
// On an emulated processor, and on a machine that does other things too, only ratios mean something: all
// labs stand at once and take turns, and each round is compared with the same round of vxlan.
func BenchmarkInTurns(b *testing.B) {
	for b.Loop() {
		var all []*contender
		for _, backend := range []string{"vxlan", "host-gw", "ipip", "wireguard", "ipsec", "udp"} {
			all = append(all, newContender(b, backend))
		}
		for range 3 {
			for _, c := range all {
				c.round(b)
			}
		}
		fmt.Print("\n| | MTU | Gbit/s to vxlan's | CPU for a Gbit to vxlan's | ping to vxlan's | Gbit/s |\n|---|---|---|---|---|---|\n")
		for _, c := range all {
			vxlan := all[0]
			fmt.Printf("| %s | %d | %.2f | %.2f | %.2f | %.2f |\n", c.backend, c.mtu, ratio(c.rates, vxlan.rates), ratio(c.costs, vxlan.costs),
				ratio(c.pings, vxlan.pings), median(slices.Clone(c.rates)))
		}
		for _, c := range all {
			if err := c.lab.Down(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// contender is one backend in a lab of two nodes, with what its rounds gave.
type contender struct {
	backend  string
	lab      *lab.Lab
	from, to *lab.Pod
	mtu      int
	rates    []float64
	costs    []float64
	pings    []time.Duration
}

func newContender(b *testing.B, backend string) *contender {
	b.Helper()
	l := labtest.Up(b, lab.Spec{Name: "e2eturns" + strings.ReplaceAll(backend, "-", ""), Backend: backend, Store: lab.File, Nodes: 2, Pods: 1})
	c := &contender{backend: backend, lab: l, from: l.Nodes()[0].Pods()[0], to: l.Nodes()[1].Pods()[0]}
	var err error
	if c.mtu, err = c.from.MTU(); err != nil {
		b.Fatal(err)
	}
	return c
}

func (c *contender) round(b *testing.B) {
	b.Helper()
	rate, cost := stream(b, c.from, c.to)
	c.rates, c.costs, c.pings = append(c.rates, rate), append(c.costs, cost), append(c.pings, flood(b, c.from, c.to))
}

// flood is how long a thousand pings take, each sent when the one before is answered: the microvm's clock is
// too coarse for one.
func flood(b *testing.B, from, to *lab.Pod) time.Duration {
	b.Helper()
	began := time.Now()
	if out, err := from.Exec(b.Context(), "ping", "-f", "-q", "-c", "1000", to.Addrs[0].String()); err != nil {
		b.Fatal(err, out)
	}
	return time.Since(began)
}

// ratio is the median of the rounds' ratios.
func ratio[T float64 | time.Duration](these, those []T) float64 {
	var all []float64
	for i := range these {
		all = append(all, float64(these[i])/float64(those[i]))
	}
	return median(all)
}
