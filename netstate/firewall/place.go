package firewall

import (
	"slices"

	"github.com/twill-net/twill/netstate"
)

// baseRule is a rule of a base chain, to which others write too, as far as it matters for the place of ours.
type baseRule struct {
	ours        bool
	comment     string
	target      string // the chain that it jumps to; of legacy iptables any target
	conditional bool
	drops       bool   // drops or rejects every packet
	handle      uint64 // in nf_tables
	line        string // of legacy iptables: what follows -A or -D
}

// placeComment marks rules of ours in a base chain with the place that was asked for. flannel's own jump has no such
// comment, so it is replaced once.
func placeComment(p netstate.Place) string { return "twill " + p.String() }

// oldComment marked the accepts of an earlier version, which stood first.
const oldComment = "twill forward"

// isMark reports whether a comment marks a rule of ours.
func isMark(comment string) bool {
	return comment == placeComment(netstate.Appended) || comment == placeComment(netstate.First) || comment == oldComment
}

// slot returns the index at which our rules belong among those of others, and whether that is the end. Rules at the end
// of the chain that drop everything stay behind ours.
func slot(p netstate.Place, rules []baseRule) (at int, end bool) {
	others := slices.DeleteFunc(slices.Clone(rules), func(r baseRule) bool { return r.ours })
	if p == netstate.First {
		return 0, len(others) == 0
	}
	at = len(others)
	for at > 0 && others[at-1].drops {
		at--
	}
	return at, at == len(others)
}

// placeOf returns the place at which our count rules stand. Appended rules may stay where they are, whatever others
// insert or append later: two programs that each want the last place would never rest. They are misplaced only behind
// the rules that end the chain. If the chain has nothing else, a rule that drops everything before ours was inserted
// after ours on purpose, and stays in force.
func placeOf(rules []baseRule, count int) netstate.Place {
	isOurs := func(r baseRule) bool { return r.ours }
	first := slices.IndexFunc(rules, isOurs)
	if first < 0 || len(rules)-first < count || slices.ContainsFunc(rules[first+count:], isOurs) {
		return netstate.Misplaced
	}
	for _, r := range rules[first : first+count] {
		if !r.ours || r.conditional || r.comment != rules[first].comment {
			return netstate.Misplaced
		}
	}
	end, _ := slot(netstate.Appended, rules)
	switch {
	case rules[first].comment == placeComment(netstate.First) && first == 0:
		return netstate.First
	case rules[first].comment == placeComment(netstate.Appended) && (first <= end || end == 0):
		return netstate.Appended
	}
	return netstate.Misplaced
}
