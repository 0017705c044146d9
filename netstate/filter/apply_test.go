package filter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// TestWrongPlans: of a plan in which something is wrong packets meet nothing in its family, or all of it, if only something
// cannot be deleted after that. The other families have all of it. What stays leads nowhere, and the next plan is not
// disturbed by that.
func TestWrongPlans(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := open(t)
	put := func(o netstate.Object) netstate.Change { return netstate.Change{Want: o} }
	drop := func(o netstate.Object) netstate.Change { return netstate.Change{Was: o} }
	element := func(set, verdict string) netstate.Element {
		return netstate.Element{Set: set, Prefix: pod(9), Verdict: verdict}
	}
	chain := func(rules string) netstate.Change {
		return put(netstate.Filter{Family: netstate.IPv6, Name: "x", Rules: rules})
	}
	wide := prefixes(t, "10.0.0.0/7")[0]
	set := netstate.Set{Family: netstate.IPv4, Name: pods, Type: netstate.Addresses}
	const inUse = "device or resource busy"
	for name, test := range map[string]struct {
		wrong netstate.Change
		want  string
	}{
		"a chain that is missing": {put(element("egress", "goto missing")), "no such file or directory"},
		"a set that is missing":   {put(element("x", "")), "set x: there is none"},
		"a set of no type": {put(netstate.Set{Family: netstate.IPv4, Name: "x", Type: "y"}),
			`the type "y" is none of`},
		"a set that changes": {netstate.Change{Was: netstate.Set{Family: netstate.IPv4, Name: pods}, Want: set},
			"a set cannot be changed"},
		"a set that is in use":   {drop(set), inUse},
		"a chain that is in use": {drop(netstate.Filter{Family: netstate.IPv6, Name: "in-1"}), inUse},
		"a chain that is the hook": {put(netstate.Filter{Family: netstate.IPv6, Name: "forward"}),
			"want another name than forward"},
		"an unknown rule":           {chain("accept\nfly"), `chain x: rule "fly": no clause begins with "fly"`},
		"a jump to a missing chain": {chain("jump y"), "no such file or directory"},
		"a circle": {put(netstate.Filter{Family: netstate.IPv6, Name: "in-1", Rules: "jump ingress"}),
			"too many links"},
		"a lookup in a missing set":  {chain("saddr @y accept"), "no such file or directory"},
		"an element that is missing": {drop(element(pods, "")), "no such file or directory"},
		"ranges that overlap":        {put(netstate.Element{Set: block, Prefix: wide}), "file exists"},
		"a range among hosts":        {put(netstate.Element{Set: pods, Prefix: wide}), "does not fit"},
		"a port among hosts":         {put(netstate.Element{Set: pods, Prefix: pod(9), Port: 1}), "does not fit"},
		"a verdict among hosts":      {put(element(pods, "return")), "does not fit"},
		"no verdict":                 {put(element("egress", "")), `verdict "": want return, or goto and a chain`},
		"an unknown verdict":         {put(element("egress", "accept")), `verdict "accept": want return, or goto`},
		"a device among hosts":       {put(netstate.Element{Set: pods, Dev: "veth1", Prefix: pod(9)}), "set pods-1: there is none"},
		"a host among devices":       {put(netstate.Element{Set: "unchecked", Dev: "veth1", Prefix: pod(9)}), "does not fit"},
		"a range among sources":      {put(netstate.Element{Set: "sources", Dev: "veth1", Prefix: wide}), "does not fit"},
		"a source of the other family": {put(netstate.Element{Set: "sources6", Dev: "veth1", Prefix: pod(9)}),
			"does not fit"},
		"a device with a long name": {put(netstate.Element{Set: "unchecked", Dev: "0123456789abcdef"}), "does not fit"},
		"a set of another family": {put(netstate.Set{Family: netstate.Ethernet, Name: "x", Type: netstate.Verdicts}),
			`the type "addr : verdict" is none of Ethernet`},
		"an address of frames": {put(netstate.Filter{Family: netstate.Ethernet, Name: "x", Rules: "saddr @sources drop"}),
			"no clause begins with"},
		"observed extras": {put(netstate.Element{Set: pods, Prefix: pod(9), Extra: "comment"}),
			"does not fit"},
	} {
		settle(t, f, policies(t))
		plan := netstate.Plan{
			{Want: netstate.Element{Set: pods, Prefix: pod(5)}},
			{Want: netstate.Filter{Family: netstate.IPv6, Name: "new", Rules: "accept"}},
			test.wrong,
			{Was: netstate.Element{Set: pods, Prefix: prefixes(t, "fd00:1::1/128")[0]}},
		}
		if err := f.Apply(t.Context(), plan); err == nil || !strings.Contains(err.Error(), test.want) ||
			strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: got %v, want an error of one line with %q", name, err, test.want)
		}
		want, family := policies(t), familyOf(test.wrong)
		if test.want == inUse || family != netstate.IPv4 {
			want.Add(plan[0].Want)
		}
		if test.want == inUse || family != netstate.IPv6 {
			want.Add(plan[1].Want)
			delete(want, plan[3].Key())
		}
		left := netstate.Diff(want, observe(t, f, want))
		if len(left) > 1 || len(left) == 1 && (left[0].Key() != plan[1].Key() || family != netstate.IPv6) {
			t.Errorf("%s: the plan failed, and left this to do:\n%s", name, left)
		}
	}
}

// TestLarge: a plan may have any size, also one that makes the table again.
func TestLarge(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f, want := open(t), large(1000, 50000)
	for i := range 300 {
		want.Add(netstate.Set{Family: netstate.IPv6, Name: fmt.Sprint("set-", i), Type: netstate.Addresses})
	}
	long := strings.Repeat("x", 255)
	want.Add(netstate.Filter{Family: netstate.IPv6, Name: long},
		netstate.Set{Family: netstate.IPv6, Name: "map", Type: netstate.Verdicts})
	for i := range 3 * perMessage {
		addr := netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
		want.Add(netstate.Element{Set: "map", Prefix: netstate.Host(addr), Verdict: "goto " + long})
	}
	settle(t, f, want)
	sh(t, "nft 'add table ip twill-policy { flags dormant; }'")
	settle(t, f, want)
	settle(t, f, netstate.State{})
	if text := sh(t, "nft list tables"); text != "" {
		t.Errorf("nothing is wanted, and there is\n%s", text)
	}
}

// TestForeignTable: other tables stay as they are, also those of the same name in other families.
func TestForeignTable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	sh(t, "nft 'add table inet twill-policy; add chain inet twill-policy in-1; add set inet twill-policy pods-1 "+
		"{ type ipv4_addr; }; add table ip other; add chain ip other in-1; add rule ip other in-1 accept'")
	before := sh(t, "nft list ruleset")
	f := open(t)
	settle(t, f, policies(t))
	settle(t, f, netstate.State{})
	if after := sh(t, "nft list ruleset"); after != before {
		t.Errorf("there were\n%s\nand are\n%s", before, after)
	}
}

// TestCheck: this kernel has what it takes, and the checks leave nothing.
func TestCheck(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	if err := errors.Join(CheckFrames(), CheckReset(), CheckLog()); err != nil {
		t.Error(err)
	}
	if text := sh(t, "nft list tables"); text != "" {
		t.Errorf("there is %s", text)
	}
}

// TestEmptyTable: a table with nothing in it goes.
func TestEmptyTable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	sh(t, "nft 'add table ip twill-policy; add table ip6 twill-policy'")
	settle(t, open(t), netstate.State{})
	if text := sh(t, "nft list tables"); text != "" {
		t.Errorf("there is %s", text)
	}
}

// TestLastOfMany: somebody's chain goes with the last of ours.
func TestLastOfMany(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f, want := open(t), policies(t)
	settle(t, f, want)
	plan := netstate.Diff(nil, observe(t, f, want))
	sh(t, "nft 'add chain ip twill-policy other; delete table ip6 twill-policy'")
	apply(t, f, plan)
	settle(t, f, netstate.State{})
	if text := sh(t, "nft list tables"); text != "" {
		t.Errorf("there is %s", text)
	}
}

// TestDone: after its context nothing is applied.
func TestDone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := f.Apply(ctx, netstate.Diff(policies(t), nil))
	if s := observe(t, f, nil); !errors.Is(err, context.Canceled) || len(s) > 0 {
		t.Errorf("got %v and\n%s", err, s)
	}
	if err := f.Apply(t.Context(), nil); err != nil || f.writer != nil {
		t.Errorf("an empty plan opens a socket, or fails: %v", err)
	}
}

// TestNotPermitted: the error says what is missing.
func TestNotPermitted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	f, none := open(t), limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := f.Apply(t.Context(), netstate.Diff(policies(t), nil))
	_, watchErr := f.Watch(t.Context())
	_, newErr := New()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{err, watchErr, newErr} {
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("without a file descriptor: got %v", err)
		}
	}
	settle(t, f, policies(t))
}

// TestWithoutReading: tables of which nothing can be read are made anew, whatever is in them, and one that is not wanted goes.
func TestWithoutReading(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, old := open(t), policies(t)
	old.Add(netstate.Filter{Family: netstate.IPv4, Name: "in-old", Rules: "accept"},
		netstate.Element{Set: pods, Prefix: pod(77)})
	settle(t, f, old)
	want, unknown := policies(t), netstate.State{}
	for key := range want {
		if familyOf(netstate.Change{Want: want[key]}) == netstate.Ethernet {
			delete(want, key)
		}
	}
	for _, family := range families {
		unknown.Add(netstate.Hook{Family: family, Extra: "the table could not be read"})
	}
	tap(t, f, func(int, []netlink.Message) ([]netlink.Message, error) { return nil, unix.EIO })
	apply(t, f, netstate.Diff(want, unknown))
	f.nf.Close()
	if left := netstate.Diff(want, observe(t, f, want)); len(left) > 0 {
		t.Errorf("there is left:\n%s", left)
	}
}
