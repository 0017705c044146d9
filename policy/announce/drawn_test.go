package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// draw is a cluster that is changed at random.
type draw struct {
	*cluster
	policytest.World
	number int
}

// pod returns one of the pods, or nil.
func (d *draw) pod() *policy.Pod {
	if len(d.snap.Pods) == 0 {
		return nil
	}
	return d.snap.Pods[d.IntN(len(d.snap.Pods))]
}

// some returns addresses that pods of the first node have.
func (d *draw) some() []netip.Addr {
	return d.Pod(1, d.IntN(8)).Addrs[:1+d.IntN(2)]
}

// create makes a pod, mostly on the first node, with or without UID and addresses.
func (d *draw) create() {
	d.number++
	p := d.Pod(1+d.IntN(4)/3, d.IntN(6))
	if p.UID = fmt.Sprint("u-", d.number); d.IntN(4) == 0 {
		p.UID, p.Name = "", fmt.Sprint("manifest", d.number)
	}
	if p.Node == "node1" && d.IntN(3) > 0 {
		p.Addrs = nil
	}
	if d.IntN(5) == 0 {
		p.Node = ""
	}
	for _, old := range d.snap.Pods {
		if old.String() == p.String() {
			return
		}
	}
	d.set(nil, &p)
}

// step changes something, and checks what must be so afterwards.
func (d *draw) step() {
	p := d.pod()
	if p == nil || d.IntN(5) == 0 {
		d.create()
		return
	}
	m := about(p, d.some()...)
	if d.IntN(6) == 0 {
		m.UID = ""
	}
	switch d.IntN(9) {
	case 0:
		d.set(p, nil)
	case 1:
		d.alter(p, func(p *policy.Pod) { p.Labels = d.Labels() })
	case 2:
		d.report(p, m.Addresses...)
	case 3:
		d.alter(p, func(p *policy.Pod) { p.Node = "node1" })
	case 4:
		if p = d.alter(p, func(p *policy.Pod) { p.Ended = true }); d.IntN(2) == 0 {
			d.set(p, nil)
		}
	case 5:
		d.rules()
	case 6: // one that is not known
		m.Name, m.UID = "later", "u-later"
		d.Add(m)
	case 7:
		d.Remove(m)
		if d.local(p) && overlap(d.addrs(p), m.Addresses) {
			d.Errorf("after DEL of %v %v has %v", m.Addresses, p, d.addrs(p))
		}
	default:
		known := d.Add(m)
		if isClosed(known) != d.local(p) {
			d.Errorf("after ADD %v is known: %v", p, isClosed(known))
		}
		if d.local(p) && !slices.Equal(d.addrs(p), m.Addresses) {
			d.Errorf("after ADD %v has %v, want %v", p, d.addrs(p), m.Addresses)
		}
		for _, other := range d.cluster.Snapshot().Pods {
			if d.local(other) && other.String() != p.String() && overlap(other.Addrs, m.Addresses) {
				d.Errorf("after ADD of %v with %v, %v has %v", p, m.Addresses, other, other.Addrs)
			}
		}
	}
}

// TestDrawn changes clusters at random. What was told must be what the snapshot has, also for a table that follows it.
func TestDrawn(t *testing.T) {
	for seed := range uint64(60) {
		w := policytest.New(seed)
		d := &draw{cluster: newCluster(t), World: w}
		d.snap = w.Snapshot(2, 6)
		var table *policy.Table
		d.seen = func(c policy.Change) {
			followed := false
			if table != nil && !c.Rules {
				_, followed = table.Follow(w.Site(1), c.Pods)
			}
			if !followed {
				table, _ = policy.NewTable(w.Site(1), c.Snapshot())
			}
		}
		d.rules()
		for step := range 150 {
			what := fmt.Sprintf("seed %d, step %d", seed, step)
			d.step()
			d.check(what)
			want, _ := policy.Desired(w.Site(1), d.cluster.Snapshot())
			if diff := netstate.Diff(want, table.State()); len(diff) > 0 {
				t.Errorf("%s: a table that followed lacks\n%s", what, diff)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}
