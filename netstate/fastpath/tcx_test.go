package fastpath

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// fastByTCX makes two nodes with the fast path between them, or skips the test on a kernel without TCX.
func fastByTCX(t *testing.T) (*node, *node) {
	t.Helper()
	if os.Geteuid() == 0 && !haveTCX() {
		t.Skip("this kernel has no TCX")
	}
	return fast(t, netstate.Encapsulate)
}

// toPodPin is the link of flannel.1.
func (n *node) toPodPin() string {
	return hookPin(n.p.folder, netstate.Program{Dev: "flannel.1", Name: netstate.ToPod})
}

// link opens the link of flannel.1.
func (n *node) link() link.Link {
	n.t.Helper()
	var l link.Link
	var err error
	n.do(func() { l, err = link.LoadPinnedLink(n.toPodPin(), nil) })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	return l
}

// links returns the names of the pins and the links' numbers.
func (n *node) links() (text string) {
	n.t.Helper()
	n.do(func() {
		all, err := hooks(n.p.folder)
		if err != nil {
			n.t.Error(err)
		}
		for _, h := range all {
			text += fmt.Sprintf("%s %d\n", strings.TrimPrefix(h.path, n.p.folder), h.id)
		}
	})
	return text
}

// TestDriftOfLinks: what somebody does to a link is in the plan, one pass repairs it, and no dead link stays.
func TestDriftOfLinks(t *testing.T) {
	a, b := fastByTCX(t)
	want := a.want(b, netstate.Encapsulate)
	const program = "program to_pod dev flannel.1 ingress"
	if text := a.command("tc", "qdisc", "show"); strings.Contains(text, "clsact") {
		t.Errorf("there are queueing disciplines that drop packets when they come:\n%s", text)
	}
	for _, d := range []struct {
		what, plan string
		do         func() error
	}{
		{"a detached link", "+ " + program, func() error { return a.link().Detach() }},
		{"another program", "~ " + program + " (was program from_pod dev flannel.1 ingress)", func() error {
			return a.link().Update(a.p.programs[string(netstate.FromPod)])
		}},
		{"another version", "~ " + program + " (was program to_pod dev flannel.1 ingress another version (id ", func() error {
			return a.link().Update(nothing(t, a.space))
		}},
		{"a device made anew", "+ " + program, func() error {
			a.ip("link del flannel.1")
			a.ip("link add flannel.1 mtu 1430 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning")
			a.ip("link set flannel.1 up")
			return nil
		}},
		{"a filter of an older agent", "~ " + program + " (was program to_pod dev flannel.1 ingress and 1 filters)", func() error {
			a.p.tcx = false
			defer func() { a.p.tcx = true }()
			return a.apply(netstate.Change{Want: netstate.Program{Dev: "flannel.1", Name: netstate.ToPod}})
		}},
	} {
		if err := d.do(); err != nil {
			t.Fatal(err)
		}
		if plan := a.diff(want).String(); !strings.Contains(plan, d.plan) {
			t.Errorf("after %s the plan is\n%swant\n%s", d.what, plan, d.plan)
		}
		a.bring(want)
		if links := a.links(); strings.Count(links, "\n") != 4 {
			t.Errorf("after %s the links are\n%s", d.what, links)
		}
		if text := a.command("tc", "filter", "show", "dev", "flannel.1", "ingress"); text != "" {
			t.Errorf("after %s there are filters:\n%s", d.what, text)
		}
	}
}

// nothing loads a program of somebody else, which leaves each packet to the next.
func nothing(t *testing.T, s *space) *ebpf.Program {
	t.Helper()
	var p *ebpf.Program
	var err error
	s.do(func() {
		p, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestLostPin: a program whose pin is gone while somebody holds its link is found, pinned again and detached.
func TestLostPin(t *testing.T) {
	a, b := fastByTCX(t)
	want := a.want(b, netstate.Encapsulate)
	lose := func() link.Link {
		l := a.link()
		a.do(func() {
			if err := os.Remove(a.toPodPin()); err != nil {
				t.Error(err)
			}
		})
		return l
	}
	held := lose()
	if plan := a.diff(want); len(plan) > 0 {
		t.Errorf("the plan is\n%s", plan)
	}
	if err := a.apply(netstate.Change{Want: netstate.Program{Dev: "flannel.1", Name: netstate.ToPod}}); err != nil {
		t.Error(err)
	}
	held.Close()
	if plan := a.diff(want); len(plan) > 0 {
		t.Errorf("pinned again, the plan is\n%s", plan)
	}
	lose()
	a.bring(nil)
	lost := a.links()
	if lost != "" {
		t.Errorf("left:\n%s", lost)
	}
	a.bring(want)
	lose().Close()
	testwait.Until(t, "the program goes with its link", func() bool {
		return a.diff(want).String() == "+ program to_pod dev flannel.1 ingress\n"
	})
	a.bring(want)
}

// TestRenamed: the link of a device that has another name does not hinder that of its successor, and goes.
func TestRenamed(t *testing.T) {
	a, b := fastByTCX(t)
	want := a.want(b, netstate.Encapsulate)
	a.ip("link set flannel.1 down")
	a.ip("link set flannel.1 name f.l.1")
	a.ip("link add flannel.1 type bridge")
	a.ip("link set flannel.1 up")
	if plan := a.diff(want).String(); !strings.Contains(plan, "+ program to_pod dev flannel.1 ingress\n") ||
		!strings.Contains(plan, "- program to_pod dev f.l.1 ingress\n") {
		t.Errorf("the plan is\n%s", plan)
	}
	a.bring(want)
	if err := a.apply(netstate.Change{Want: netstate.Program{Dev: "flannel.1", Name: netstate.ToPod}}); err != nil {
		t.Error(err)
	}
	if links := a.links(); strings.Count(links, "\n") != 4 {
		t.Errorf("the links are\n%s", links)
	}
}

// TestAdoptedLinks: a restart and another version of the programs keep the links.
func TestAdoptedLinks(t *testing.T) {
	a, b := fastByTCX(t)
	before := a.links()
	a.open()
	if plan := a.diff(a.want(b, netstate.Encapsulate)); len(plan) > 0 || a.links() != before {
		t.Errorf("after a restart the plan is\n%sthe links are\n%sand were\n%s", plan, a.links(), before)
	}
	for _, sub := range []string{"progs", "maps"} {
		a.command("rm", "-r", a.p.folder+"/"+sub)
	}
	a.open()
	plan := a.diff(a.want(b, netstate.Encapsulate)).String()
	if !strings.Contains(plan, "(was program from_pod dev cni0 ingress another version (id ") {
		t.Errorf("the plan is\n%s", plan)
	}
	a.bring(a.want(b, netstate.Encapsulate))
	if a.links() != before || before == "" {
		t.Errorf("the links are\n%sand were\n%s", a.links(), before)
	}
	e := newEcho(t, a.pod, b.pod, b.pod4())
	e.assured()
	e.must(100)
	if a.count(netstate.FromPod, "encap") == 0 {
		t.Errorf("nothing is fast: %s", a.counted())
	}
}

// TestForeignTCX: no program of ours stays beside one of somebody else, which keeps its place.
func TestForeignTCX(t *testing.T) {
	a, b := fastByTCX(t)
	want := a.want(b, netstate.Encapsulate)
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		index, err := a.p.names.index("flannel.1")
		if err != nil {
			t.Fatal(err)
		}
		var l link.Link
		other := nothing(t, a.space)
		a.do(func() { l, err = link.AttachTCX(link.TCXOptions{Interface: int(index), Program: other, Attach: at}) })
		if err != nil {
			t.Fatal(err)
		}
		plan := a.diff(want)
		if len(plan) != 1 || !strings.Contains(plan.String(), "gress tcx program ") {
			t.Fatalf("the plan is\n%s", plan)
		}
		if err := a.apply(plan[0]); err == nil || !strings.Contains(err.Error(), "filters of somebody else") {
			t.Errorf("beside it: %v", err)
		}
		if err := a.apply(netstate.Change{Was: plan[0].Want}); err != nil {
			t.Error(err)
		}
		if info, err := l.Info(); err != nil || info.TCX().Ifindex != index {
			t.Errorf("the other program is gone: %v, %v", info, err)
		}
		l.Close()
		a.bring(want)
	}
}

// TestOlderAgent: TCX takes over from filters that an older agent has left, with few capabilities.
func TestOlderAgent(t *testing.T) {
	if os.Geteuid() == 0 && !haveTCX() {
		t.Skip("this kernel has no TCX")
	}
	a, b := fastBy(t, netstate.Encapsulate, true)
	a.classic = false
	a.drop()
	a.open()
	if plan := a.diff(a.want(b, netstate.Encapsulate)).String(); strings.Count(plan, " by cls_bpf)\n") != 4 {
		t.Errorf("the plan is\n%s", plan)
	}
	a.bring(a.want(b, netstate.Encapsulate))
	if text := a.command("tc", "filter", "show", "dev", "cni0", "ingress"); text != "" {
		t.Errorf("filters are left: %s", text)
	}
	e := newEcho(t, a.pod, b.pod, b.pod4())
	e.assured()
	e.must(100)
	if a.count(netstate.FromPod, "encap") == 0 {
		t.Errorf("nothing is fast: %s", a.counted())
	}
}

// TestOtherNamespace: an index of a device means nothing in another network namespace.
func TestOtherNamespace(t *testing.T) {
	a, b := fastByTCX(t)
	_, err := a.p.Observe(nil, nil)
	err = errors.Join(err, a.p.Apply(netstate.Change{Want: netstate.Program{Dev: "cni0", Name: netstate.FromPod}}))
	if err == nil || strings.Count(err.Error(), "in which the fast path was opened") != 2 {
		t.Errorf("the error is %v", err)
	}
	_ = b
}
