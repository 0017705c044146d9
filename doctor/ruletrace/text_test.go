package ruletrace

import (
	"maps"
	"net/netip"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/internal/savedrule"
	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/netstate/nfnl"
)

func TestParseList(t *testing.T) {
	const out = `table inet fw { # handle 5
	chain forward { # handle 1
		type filter hook forward priority filter; policy drop;
		ip saddr { 10.0.0.1, 10.0.0.2,
			   10.0.0.3 } drop comment "a # handle 9 b" # handle 7
		counter # handle 8
	}
	chain odd { # handle 2
		type filter hook ingress devices = { a, b } priority 0; policy accept;
	}
}
`
	want := map[uint64]string{7: `ip saddr { 10.0.0.1, 10.0.0.2, 10.0.0.3 } drop comment "a # handle 9 b"`, 8: "counter"}
	if got := parseList(out); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	long := strings.Repeat("ä", maxText)
	if got := parseList(long + " # handle 3\n")[3]; len(got) > maxText+10 || !strings.HasSuffix(got, "ä …") {
		t.Errorf("got %q", got)
	}
}

func TestParseListing(t *testing.T) {
	for name, c := range map[string]struct {
		out  string
		want []savedrule.Chain
	}{
		"arptables 0.0.5": {"Chain INPUT (policy DROP 2 packets, 56 bytes)\n\nChain OUTPUT (policy ACCEPT 0 packets, 0 bytes)\n" +
			"-j DROP -i * -o v0 -d 10.1.0.2 , pcnt=1 -- bcnt=28 \n\nChain own (0 references)\n" +
			"-j mangle -i * -o * --opcode 1 --mangle-ip-d 10.1.0.9 , pcnt=0 -- bcnt=0 \n", []savedrule.Chain{
			{Name: "INPUT", Policy: "DROP", Packets: 2},
			{Name: "OUTPUT", Policy: "ACCEPT", Rules: []savedrule.Rule{savedRule("-A OUTPUT -j DROP -o v0 -d 10.1.0.2", 1)}},
			{Name: "own", Rules: []savedrule.Rule{savedRule("-A own -j mangle --opcode 1 --mangle-ip-d 10.1.0.9", 0)}},
		}},
		"ebtables 2.0.11": {"Bridge Table: filter\n\nBridge chain: INPUT, entries: 0, policy: ACCEPT\n\n" +
			"Bridge chain: FORWARD, entries: 1, policy: DROP\n-p IPv4 -i a0 -j DROP , pcnt = 5 -- bcnt = 420\n", []savedrule.Chain{
			{Name: "INPUT", Policy: "ACCEPT"},
			{Name: "FORWARD", Policy: "DROP", Rules: []savedrule.Rule{savedRule("-A FORWARD -p IPv4 -i a0 -j DROP", 5)}},
		}},
	} {
		if got := parseListing(c.out); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// TestAct: which rules of legacy tables stop or rewrite packets.
func TestAct(t *testing.T) {
	for rule, want := range map[string]*locate.Hit{
		"-A F -j DROP":                    {Verdict: "drop", Stops: true},
		"-A F -j REJECT --reject-with x":  {Verdict: "reject", Stops: true},
		"-A F -j DNAT --to-destination a": {Verdict: "continue", Rewrote: "DNAT --to-destination a"},
		"-A F -j DNAT --to-destination 10.0.0.9:80": {Verdict: "continue", Rewrote: "DNAT --to-destination 10.0.0.9:80",
			Effect: locate.Effect{To: netip.MustParseAddrPort("10.0.0.9:80")}},
		"-A F -j DNAT --to-destination 10.0.0.9": {Verdict: "continue", Rewrote: "DNAT --to-destination 10.0.0.9",
			Effect: locate.Effect{To: netip.MustParseAddrPort("10.0.0.9:0")}},
		"-A F -j MASQUERADE":                {Verdict: "continue", Rewrote: "MASQUERADE", Effect: locate.Effect{Source: true}},
		"-A F -j mangle --mangle-ip-d b":    {Verdict: "continue", Rewrote: "mangle --mangle-ip-d b"},
		"-A F -j TCPMSS --clamp-mss-to-mtu": {Verdict: "continue", Rewrote: "TCPMSS --clamp-mss-to-mtu"},
		"-A F -j TEE --gateway a":           {Verdict: "dup", Rewrote: Copied, Effect: locate.Effect{Copies: true}},
		"-A F -j own":                       nil, "-A F -j ACCEPT": nil, "-A F": nil, "-A F -j": nil, "-A F -j LOG": nil,
	} {
		var h locate.Hit
		acts := act(&h, savedrule.Rule{Text: rule, Words: savedrule.Words(rule)})
		if acts != (want != nil) || want != nil && h != *want {
			t.Errorf("%s: %v, %+v", rule, acts, h)
		}
	}
}

// savedRule is a rule without quotation marks.
func savedRule(text string, packets uint64) savedrule.Rule {
	return savedrule.Rule{Text: text, Words: strings.Fields(text), Packets: packets}
}

// TestHostileNames: a name that others chose is no command, for nft nor for who copies what is printed.
func TestHostileNames(t *testing.T) {
	testns.Enter(t)
	for name, p := range map[string]nfnl.Place{
		"a table": {Family: unix.AF_INET, Table: "t; add table ip injected; list table ip t", Chain: "c"},
		"a chain": {Family: unix.AF_INET, Table: "t", Chain: "c; add table ip injected"},
		"a line":  {Family: unix.AF_INET, Table: "t", Chain: "c\nadd table ip injected"},
	} {
		b := newBook(ruleset{})
		o := b.object(&met{event: event{Place: p, handle: 3, kind: unix.NFT_TRACETYPE_RULE}})
		if o.Fix != "" || b.object(&met{event: event{Place: p, kind: unix.NFT_TRACETYPE_POLICY}}).Fix != "" {
			t.Errorf("%s: the command is %q, want none", name, o.Fix)
		}
	}
	if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("nft made tables of names: %s, %v", out, err)
	}
}
