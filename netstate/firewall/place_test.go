package firewall

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// placed are the chains with the forward rules at a place.
func placed(mode netstate.Mode, forward backend.ForwardRules) netstate.State {
	return netstate.NewState(backend.FirewallChains(backend.FirewallConfig{
		Mode: mode, Stacks: stacks, Bridge: "cni0", Masq: true, Random: true, Forward: forward,
	})...)
}

// foreign are the rules that others may have in FORWARD, by a letter.
var foreign = map[string]string{
	"J": "-m comment --comment policies -j POLICIES", // a policy engine's, or kube-proxy's
	"c": "-s %s -j DROP",                             // an administrator's, against one pod
	"R": "-j REJECT",                                 // what ends a firewall's chain
	"D": "-m comment --comment 'the rest' -j DROP",
}

// base is FORWARD of one family.
type base struct{ bin, pod string }

// set makes the chain consist of the rules of these letters.
func (b base) set(t *testing.T, letters string) {
	t.Helper()
	sh(t, b.bin+" -F FORWARD; "+b.bin+" -N POLICIES 2>/dev/null || true")
	for _, l := range strings.Fields(letters) {
		sh(t, b.bin+" -A FORWARD "+b.rule(l))
	}
}

func (b base) rule(letter string) string {
	if r := foreign[letter]; strings.Contains(r, "%s") {
		return fmt.Sprintf(r, b.pod)
	} else {
		return r
	}
}

// lines are the rules, and those of ours among them.
func (b base) lines(t *testing.T) (all, ours []string) {
	for _, l := range strings.Split(sh(t, b.bin+" -S FORWARD"), "\n") {
		if rule, ok := strings.CutPrefix(l, "-A FORWARD "); ok {
			all = append(all, rule)
			if strings.Contains(rule, "FLANNEL-FWD") || strings.Contains(rule, "twill") {
				ours = append(ours, rule)
			}
		}
	}
	return all, ours
}

// letters is the chain, with "ours" for all that stands together of ours.
func (b base) letters(t *testing.T) string {
	t.Helper()
	all, ours := b.lines(t)
	var words []string
	for _, l := range all {
		word := "?"
		switch {
		case slices.Contains(ours, l):
			word = "ours"
		case strings.HasSuffix(l, "-j POLICIES"):
			word = "J"
		case strings.HasPrefix(l, "-s "):
			word = "c"
		case strings.Contains(l, "-j REJECT"):
			word = "R"
		case strings.Contains(l, "-j DROP"):
			word = "D"
		}
		words = append(words, word)
	}
	return strings.Join(slices.Compact(words), " ")
}

// again writes ours once more, at the end or at the front.
func (b base) again(t *testing.T, remove bool, at string) {
	t.Helper()
	_, ours := b.lines(t)
	for _, l := range ours {
		if remove {
			sh(t, b.bin+" -D FORWARD "+l)
		}
	}
	if at == "-I" {
		slices.Reverse(ours)
	}
	for _, l := range ours {
		sh(t, b.bin+" "+at+" FORWARD "+l)
	}
}

// bases are FORWARD of both families where g's rules compete with others'.
func (g ground) bases() []base {
	bin := "iptables-nft"
	if g.name == "iptables-legacy" {
		bin = g.name
	}
	return []base{{bin, "10.244.1.7/32"}, {strings.Replace(bin, "iptables", "ip6tables", 1), "fd00:244:1::7/128"}}
}

// TestPlace: ours stand behind everybody else's rules, but before those that end the chain.
func TestPlace(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "iptables-nft", "ip6tables-nft")
		for _, forward := range []backend.ForwardRules{backend.ForwardOn, backend.ForwardFirst, backend.ForwardOn} {
			settle(t, f, placed(g.mode, forward)) // in nftables mode there is no FORWARD yet
		}
		for _, b := range g.bases() {
			for _, c := range []struct {
				before  string
				forward backend.ForwardRules
				want    string
			}{
				{"", backend.ForwardOn, "ours"},
				{"J", backend.ForwardOn, "J ours"},
				{"c", backend.ForwardOn, "c ours"},
				{"R", backend.ForwardOn, "ours R"},
				{"D", backend.ForwardOn, "ours D"},
				{"J c R", backend.ForwardOn, "J c ours R"},
				{"J D R", backend.ForwardOn, "J ours D R"},
				{"R J", backend.ForwardOn, "R J ours"},
				{"R J c", backend.ForwardOn, "R J c ours"},
				{"J R", backend.ForwardFirst, "ours J R"},
				{"", backend.ForwardFirst, "ours"},
			} {
				b.set(t, c.before)
				settle(t, f, placed(g.mode, c.forward))
				if got := b.letters(t); got != c.want {
					t.Errorf("%s, %s: %q became %q, want %q", b.bin, c.forward, c.before, got, c.want)
				}
			}
		}
	})
}

// TestPlaceOf: our rules are in place if they stand together, unconditional and with one comment, before the end.
func TestPlaceOf(t *testing.T) {
	appended := baseRule{ours: true, comment: placeComment(netstate.Appended)}
	first := baseRule{ours: true, comment: placeComment(netstate.First)}
	conditional, other, drop := appended, appended, baseRule{drops: true}
	conditional.conditional, other.ours = true, false
	for _, c := range []struct {
		rules []baseRule
		count int
		want  netstate.Place
	}{
		{nil, 1, netstate.Misplaced},
		{[]baseRule{appended}, 1, netstate.Appended},
		{[]baseRule{appended}, 2, netstate.Misplaced},
		{[]baseRule{appended, appended}, 1, netstate.Misplaced},
		{[]baseRule{appended, appended}, 2, netstate.Appended},
		{[]baseRule{appended, first}, 2, netstate.Misplaced},
		{[]baseRule{appended, other}, 2, netstate.Misplaced},
		{[]baseRule{appended, other, appended}, 2, netstate.Misplaced},
		{[]baseRule{conditional}, 1, netstate.Misplaced},
		{[]baseRule{{ours: true}}, 1, netstate.Misplaced},
		{[]baseRule{first, {}}, 1, netstate.First},
		{[]baseRule{{}, first}, 1, netstate.Misplaced},
		{[]baseRule{{}, appended, drop}, 1, netstate.Appended},
		{[]baseRule{{}, drop, appended}, 1, netstate.Misplaced},
		{[]baseRule{{}, appended, {}}, 1, netstate.Appended},
		{[]baseRule{drop, appended}, 1, netstate.Appended},
	} {
		if got := placeOf(c.rules, c.count); got != c.want {
			t.Errorf("%d rules of ours in %+v: got %s, want %s", c.count, c.rules, got, c.want)
		}
	}
}

// TestPlaceStays: what others write around ours stays, unless it makes ours useless.
func TestPlaceStays(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "iptables-nft", "ip6tables-nft")
		insert := func(letter string) func(*testing.T, base) {
			return func(t *testing.T, b base) { sh(t, b.bin+" -I FORWARD "+b.rule(letter)) }
		}
		appended := func(letter string) func(*testing.T, base) {
			return func(t *testing.T, b base) { sh(t, b.bin+" -A FORWARD "+b.rule(letter)) }
		}
		for _, b := range g.bases() {
			for _, c := range []struct {
				name, before string
				forward      backend.ForwardRules
				disturb      func(*testing.T, base)
				want         string
			}{
				{"a policy engine inserts", "c R", backend.ForwardOn, insert("J"), "J c ours R"},
				{"a policy engine appends", "R", backend.ForwardOn, appended("J"), "ours R J"},
				{"an administrator stops a pod", "J", backend.ForwardOn, insert("c"), "c J ours"},
				{"an administrator stops all", "", backend.ForwardOn, insert("D"), "D ours"},
				{"an administrator stops all, with a policy engine", "J R", backend.ForwardOn, insert("D"), "D J ours R"},
				{"ours are behind the end", "J R", backend.ForwardOn,
					func(t *testing.T, b base) { b.again(t, true, "-A") }, "J ours R"},
				{"ours are there twice", "J R", backend.ForwardOn,
					func(t *testing.T, b base) { b.again(t, false, "-I") }, "J ours R"},
				{"the chain is flushed", "J R", backend.ForwardOn,
					func(t *testing.T, b base) { b.set(t, "J c D") }, "J c ours D"},
				{"first, and another inserts", "R", backend.ForwardFirst, insert("J"), "ours J R"},
			} {
				b.set(t, c.before)
				want := placed(g.mode, c.forward)
				settle(t, f, want)
				c.disturb(t, b)
				left := b.letters(t) == c.want
				if plan := netstate.Diff(want, observe(t, f)); left != (len(plan) == 0) {
					t.Errorf("%s, %s: the chain is %q, want %q; the plan:\n%s", b.bin, c.name, b.letters(t), c.want, plan)
				}
				settle(t, f, want)
				if got := b.letters(t); got != c.want {
					t.Errorf("%s, %s: got %q, want %q", b.bin, c.name, got, c.want)
				}
			}
		}
	})
}

// TestPlaceTakenOver: rules that flannel or an earlier version wrote before those of others go behind them, once.
func TestPlaceTakenOver(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "iptables-nft", "ip6tables-nft")
		want := placed(g.mode, backend.ForwardOn)
		for i, b := range g.bases() {
			settle(t, f, want)
			b.set(t, "")
			old := "-m comment --comment 'flanneld forward' -j FLANNEL-FWD"
			if g.mode == netstate.NFTables {
				old = "-s " + stacks[i].Cluster.String() + " -m comment --comment 'twill forward' -j ACCEPT"
			}
			sh(t, b.bin+" -A FORWARD "+old)
			for _, l := range []string{"J", "c"} {
				sh(t, b.bin+" -A FORWARD "+b.rule(l))
			}
			settle(t, f, want)
			if got := b.letters(t); got != "J c ours" {
				t.Errorf("%s: got %q, want \"J c ours\"", b.bin, got)
			}
		}
	})
}

// TestPlaceInNAT: a rule by which an administrator gives pods another source decides first, as with flannel.
func TestPlaceInNAT(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		if g.mode == netstate.NFTables {
			return // a base chain of its own
		}
		bin := g.bases()[0].bin
		sh(t, bin+" -t nat -A POSTROUTING -s 10.244.1.0/24 -j SNAT --to-source 192.0.2.1")
		settle(t, f, wanted(g.mode))
		rules := strings.Split(sh(t, bin+" -t nat -S POSTROUTING"), "\n")
		if len(rules) != 4 || !strings.Contains(rules[1], "SNAT") || !strings.Contains(rules[2], "FLANNEL-POSTRTG") {
			t.Errorf("POSTROUTING is\n%s", strings.Join(rules, "\n"))
		}
		settle(t, f, netstate.State{})
		empty(t)
	})
}

// TestPlaceWatched: rules of ours that somebody moves behind the end are noticed.
func TestPlaceWatched(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "iptables-nft", "ip6tables-nft")
		want := placed(g.mode, backend.ForwardOn)
		for _, b := range g.bases() {
			b.set(t, "J R")
			settle(t, f, want)
			f.legacyInterval = 500 * time.Millisecond
			events, err := f.Watch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.again(t, true, "-A")
			await(t, events, b.bin)
			settle(t, f, want)
			if got := b.letters(t); got != "J ours R" {
				t.Errorf("%s: got %q, want \"J ours R\"", b.bin, got)
			}
		}
	})
}
