package fastpath

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/twill-net/twill/netstate"
)

// TestBesidePods: what somebody else has where packets leave for a pod is told, by the pod's port; where packets come in
// from the pod, they meet it before they come to the fast path.
func TestBesidePods(t *testing.T) {
	a, _ := pair(t)
	a.open()
	beside := func() map[string]string {
		t.Helper()
		var all map[string]string
		var err error
		a.do(func() { all, err = a.p.Beside([]string{"pod", "nosuch"}) })
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	const chain = "add table netdev x; add chain netdev x c { type filter hook "
	for _, b := range []struct{ what, do, undo, want string }{
		{"nothing", "true", "true", ""},
		{"a chain", "nft '" + chain + "egress device pod priority 0; policy drop; }'", "nft delete table netdev x", "egress chain netdev x c"},
		{"a chain of several devices", "nft '" + chain + "egress devices = { lo, pod } priority 0; }'", "nft delete table netdev x",
			"egress chain netdev x c"},
		{"a chain of another device", "nft '" + chain + "egress device cni0 priority 0; }'", "nft delete table netdev x", ""},
		{"a chain of the doctor", "nft 'add table netdev twill-trace-7; add chain netdev twill-trace-7 c { type filter hook egress device pod priority 0; }'",
			"nft delete table netdev twill-trace-7", ""},
		{"a chain where packets come in", "nft '" + chain + "ingress device pod priority 0; }'", "nft delete table netdev x", ""},
		{"a filter", "tc qdisc add dev pod clsact; tc filter add dev pod egress pref 7 bpf bytecode '1,6 0 0 0'",
			"tc qdisc del dev pod clsact", "egress bpf pref 7"},
		{"a filter where packets come in", "tc qdisc add dev pod clsact; tc filter add dev pod ingress pref 7 bpf bytecode '1,6 0 0 0'",
			"tc qdisc del dev pod clsact", ""},
	} {
		a.command("sh", "-ec", b.do)
		if got := beside()["pod"]; got != b.want || len(beside()) > 1 {
			t.Errorf("%s: %q, want %q; all: %v", b.what, got, b.want, beside())
		}
		a.command("sh", "-ec", b.undo)
	}
	if !a.p.tcx {
		return
	}
	for at, want := range map[ebpf.AttachType]string{ebpf.AttachTCXIngress: "", ebpf.AttachTCXEgress: "egress tcx program "} {
		program := nothing(t, a.space)
		var l link.Link
		var err error
		a.do(func() {
			index, failed := a.p.names.index("pod")
			l, err = link.AttachTCX(link.TCXOptions{Interface: int(index), Program: program, Attach: at})
			err = errors.Join(failed, err)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := beside()["pod"]; !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("TCX %s: %q, want %q", sides[at], got, want)
		}
		l.Close()
	}
}

// TestBesideChains: a chain of nf_tables at a device that a program is at is told, and forbids the program.
func TestBesideChains(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	want := a.want(b, netstate.Encapsulate)
	for _, c := range []struct{ family, hook, dev string }{
		{"netdev", "ingress", "cni0"}, {"netdev", "egress", "cni0"}, {"netdev", "ingress", "flannel.1"}, {"inet", "ingress", "flannel.1"},
	} {
		a.command("nft", "add table "+c.family+" x; add chain "+c.family+" x c { type filter hook "+c.hook+" device "+c.dev+" priority 0; }")
		plan := a.diff(want)
		if text := c.hook + " chain " + c.family + " x c"; len(plan) != 1 || !strings.Contains(plan.String(), c.dev+" ingress beside "+text) {
			t.Errorf("with %s the plan is\n%s", text, plan)
		} else if err := a.apply(plan[0]); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("with %s: %v", text, err)
		}
		a.command("nft", "delete table "+c.family+" x")
		if plan := a.diff(want); len(plan) > 0 {
			t.Errorf("without it there is to do:\n%s", plan)
		}
	}
}
