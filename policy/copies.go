package policy

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// Each chain about the direction in which a connection began has two copies, which have its name with one of these at the end, as
// maps have that lead to them.
const (
	// backwards judges packets as if they went the other way: replies, which pass where the connection may begin, and packets that
	// begin an entry of conntrack but perhaps not their connection, which have to be allowed in both directions.
	backwards = "-backwards"
	// ofErrors judges ICMP errors by the connection that these are about. In both directions they pass where it may begin.
	ofErrors = "-errors"
)

// copies is how many chains there are for each one that is made of policies, with itself.
const copies = 3

// hasCopies reports whether what has a name, a chain or a map, is about forwarded packets of pods.
func hasCopies(name string) bool { return name == egressName || name == ingressName || IsChain(name) }

// IsChain reports whether a name is that of a chain that is made of policies. Their copies are made of them.
func IsChain(name string) bool {
	return (strings.HasPrefix(name, "in-") || strings.HasPrefix(name, "eg-")) && Original(name) == name
}

// Original returns the name of the chain of which one is a copy, and that of any other as it is.
func Original(chain string) string {
	return strings.TrimSuffix(strings.TrimSuffix(chain, backwards), ofErrors)
}

// addCopies adds the copies of what is in a part of the table. One that audits has none: replies and errors pass, and are not
// counted.
func (t *Table) addCopies(state netstate.State) {
	if !t.site.Audit {
		state.Add(Copies(maps.Values(state))...)
	}
}

// copies returns the names of a chain and of its copies, if it has some.
func (t *Table) copies(chain string) []string {
	if t.site.Audit {
		return []string{chain}
	}
	return []string{chain, chain + backwards, chain + ofErrors}
}

// Copies returns the copies of chains, of the maps that lead to these, and of the maps' elements. Other objects have none.
func Copies(objects iter.Seq[netstate.Object]) (all []netstate.Object) {
	for o := range objects {
		for _, suffix := range []string{backwards, ofErrors} {
			switch o := o.(type) {
			case netstate.Set:
				if hasCopies(o.Name) && o.Type == netstate.Verdicts {
					o.Name += suffix
					all = append(all, o)
				}
			case netstate.Element:
				if hasCopies(o.Set) && o.Verdict != "" {
					o.Set += suffix
					if strings.HasPrefix(o.Verdict, "goto ") {
						o.Verdict += suffix
					}
					all = append(all, o)
				}
			case netstate.Filter:
				if hasCopies(o.Name) && o.Family != netstate.Ethernet {
					o.Name += suffix
					o.Rules = copyRules(o.Rules, suffix)
					all = append(all, o)
				}
			}
		}
	}
	return all
}

// copyRules returns the rules of a chain's copy. What one allows goes on, to be judged in the other direction, too, or by the
// hook. A packet that begins an entry is answered with a reset if it is of TCP, so that programs connect anew at once; of
// others it is not known whether what denies them is there to stay.
func copyRules(rules, suffix string) string {
	view := strings.TrimPrefix(suffix, "-") + " "
	var lines []string
	for line := range strings.SplitSeq(rules, "\n") {
		line = view + line
		if matches, drops := strings.CutSuffix(line, "counter drop"); drops && suffix == backwards {
			lines = append(lines, matches+"new counter reset")
		} else if allowed, accepts := strings.CutSuffix(line, "accept"); accepts {
			line = allowed + "return"
		} else if words := strings.Fields(line); slices.Contains([]string{"goto", "vmap", "log"}, words[len(words)-2]) {
			line += suffix
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
