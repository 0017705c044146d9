//go:build vm

package xfrm

import (
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// policies are what a node of both families has, with addresses that end in zeros on purpose.
func policies() netstate.State {
	tunnel := func(dir netstate.Direction, src, dst, from, to string, optional bool) netstate.Policy {
		return netstate.Policy{Dir: dir, Src: prefix(src), Dst: prefix(dst), Priority: 116001,
			From: netip.MustParseAddr(from), To: netip.MustParseAddr(to), ReqID: 11, Optional: optional}
	}
	return netstate.NewState(
		netstate.Policy{Dir: netstate.Out, Src: prefix("0.0.0.0/0"), Dst: prefix("10.244.0.0/16"), Priority: 116002,
			Block: true},
		netstate.Policy{Dir: netstate.Out, Src: prefix("0.0.0.0/0"), Dst: prefix("10.244.1.0/24"), Priority: 116000},
		tunnel(netstate.Out, "10.244.1.0/24", "10.244.2.0/24", "192.0.2.1", "192.0.2.2", false),
		tunnel(netstate.In, "10.244.2.0/24", "10.244.1.0/24", "192.0.2.2", "192.0.2.1", true),
		netstate.Policy{Dir: netstate.Out, Src: prefix("::/0"), Dst: prefix("fd00:244::/56"), Priority: 116002, Block: true},
		netstate.Policy{Dir: netstate.Out, Src: prefix("::/0"), Dst: prefix("fd00:244:0:1::/64"), Priority: 116000},
		tunnel(netstate.Out, "fd00:244:0:1::/64", "fd00:244::/64", "2001:db8::1", "2001:db8::", false),
		tunnel(netstate.Fwd, "fd00:244::/64", "fd00:244:0:1::/64", "2001:db8::", "2001:db8::1", true),
	)
}

// open is the policies of a namespace for this test, whose thread ends with it.
func open(t *testing.T) *Policies {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	p, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func diff(t *testing.T, p *Policies, want netstate.State) netstate.Plan {
	t.Helper()
	have, err := p.Observe(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	return netstate.Diff(want, have)
}

// bring makes one pass, which has to be enough.
func bring(t *testing.T, p *Policies, want netstate.State) {
	t.Helper()
	for _, c := range diff(t, p, want) {
		if err := p.Apply(c); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
	if rest := diff(t, p, want); len(rest) > 0 {
		t.Fatalf("still to do:\n%s", rest)
	}
}

func TestRoundTrip(t *testing.T) {
	p := open(t)
	for range 2 {
		bring(t, p, policies())
		if plan := diff(t, p, nil); len(plan) != len(policies()) {
			t.Errorf("%d policies to delete, want %d:\n%s", len(plan), len(policies()), plan)
		}
		bring(t, p, nil)
	}
}

// TestDrift: one command of someone else, the plan that names what it did, and one pass that repairs it.
func TestDrift(t *testing.T) {
	const out4 = "policy out src 10.244.1.0/24 dst 10.244.2.0/24 priority 116001 esp 192.0.2.1 to 192.0.2.2 reqid 11"
	const out6 = "policy out src fd00:244:0:1::/64 dst fd00:244::/64 priority 116001 esp 2001:db8::1 to 2001:db8:: reqid 11"
	const block6 = "policy out src ::/0 dst fd00:244::/56 priority 116002 block"
	const from4 = "policy in src 10.244.2.0/24 dst 10.244.1.0/24 priority 116001 esp 192.0.2.2 to 192.0.2.1 reqid 11"
	const in4 = "src 10.244.2.0/24 dst 10.244.1.0/24 dir in "
	const cmd4 = "src 10.244.1.0/24 dst 10.244.2.0/24 dir out "
	const cmd6 = "src fd00:244:0:1::/64 dst fd00:244::/64 dir out "
	p := open(t)
	for _, d := range []struct{ command, plan string }{
		{"delete " + cmd4, "+ " + out4},
		{"delete " + cmd6, "+ " + out6},
		{"delete src ::/0 dst fd00:244::/56 dir out", "+ " + block6},
		{"update " + cmd4 + "priority 7 tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 11 mode tunnel",
			"~ " + out4 + " (was " + strings.Replace(out4, "116001", "7", 1) + ")"},
		{"update " + cmd6 + "priority 116001 tmpl src 2001:db8::9 dst 2001:db8:: proto esp reqid 11 mode tunnel",
			"~ " + out6 + " (was " + strings.Replace(out6, "db8::1 to", "db8::9 to", 1) + ")"},
		{"update " + cmd6 + "priority 116001 tmpl src 2001:db8::1 dst 2001:db8:: proto esp reqid 12 mode tunnel",
			"~ " + out6 + " (was " + strings.Replace(out6, "reqid 11", "reqid 12", 1) + ")"},
		{"update " + in4 + "priority 116001 tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 11 mode tunnel level required", "~ " + from4 + " optional (was " + from4 + ")"},
		{"update " + cmd4 + "priority 116001", "~ " + out4 +
			" (was policy out src 10.244.1.0/24 dst 10.244.2.0/24 priority 116001)"},
		{"update " + cmd4 + "priority 116001 tmpl proto esp reqid 11 mode transport",
			"~ " + out4 + " (was policy out src 10.244.1.0/24 dst 10.244.2.0/24 priority 116001 esp"},
		{"update src ::/0 dst fd00:244::/56 dir out priority 116002",
			"~ " + block6 + " (was policy out src ::/0 dst fd00:244::/56 priority 116002)"},
		{"add src fd00:244:9::/64 dst fd00:244::/56 dir in priority 116001",
			"- policy in src fd00:244:9::/64 dst fd00:244::/56 priority 116001"},
	} {
		bring(t, p, policies())
		if out, err := exec.Command("ip", append([]string{"xfrm", "policy"},
			strings.Fields(d.command)...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", d.command, err, out)
		}
		if plan := diff(t, p, policies()).String(); strings.Count(plan, "\n") != 1 || !strings.HasPrefix(plan, d.plan) {
			t.Errorf("after %s the plan is\n%swant\n%s", d.command, plan, d.plan)
		}
		bring(t, p, policies())
	}
}

// TestForeign: the policies of others are neither seen nor deleted.
func TestForeign(t *testing.T) {
	p := open(t)
	if out, err := exec.Command("ip", strings.Fields("xfrm policy add src fd00:9::/64 dst fd00:8::/64 dir out priority 100")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bring(t, p, policies())
	bring(t, p, nil)
	if out, err := exec.Command("ip", "xfrm", "policy").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "fd00:9::/64") {
		t.Errorf("it is gone: %v: %s", err, out)
	}
}
