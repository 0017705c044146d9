package policy

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// backwards is at the end of the names of chains and maps that judge packets as if they went the other way. Each chain about the
// direction in which a connection began has such a twin: for replies, which pass where the connection may begin, and for
// packets that begin an entry of conntrack but perhaps not their connection, which have to be allowed in both directions.
const backwards = "-backwards"

// copies is how many chains there are for each one that is made of policies: itself, and its twin.
const copies = 2

// hasTwin reports whether what has a name, a chain or a map, is about forwarded packets of pods.
func hasTwin(name string) bool { return name == egressName || name == ingressName || IsChain(name) }

// IsChain reports whether a name is that of a chain that is made of policies. Their twins are made of them.
func IsChain(name string) bool {
	return (strings.HasPrefix(name, "in-") || strings.HasPrefix(name, "eg-")) && !strings.HasSuffix(name, backwards)
}

// Original returns the name of the chain of which one is the twin, and that of any other as it is.
func Original(chain string) string { return strings.TrimSuffix(chain, backwards) }

// addTwins adds the twins of what is in a part of the table. One that audits has none: replies pass, and are not counted.
func (t *Table) addTwins(state netstate.State) {
	if !t.site.Audit {
		state.Add(Twins(maps.Values(state))...)
	}
}

// copies returns the names of a chain and of its twin, if it has one.
func (t *Table) copies(chain string) []string {
	if t.site.Audit {
		return []string{chain}
	}
	return []string{chain, chain + backwards}
}

// Twins returns the twins of chains, of the maps that lead to these, and of the maps' elements. Other objects have none.
func Twins(objects iter.Seq[netstate.Object]) (all []netstate.Object) {
	for o := range objects {
		switch o := o.(type) {
		case netstate.Set:
			if hasTwin(o.Name) && o.Type == netstate.Verdicts {
				o.Name += backwards
				all = append(all, o)
			}
		case netstate.Element:
			if hasTwin(o.Set) && o.Verdict != "" {
				o.Set += backwards
				if strings.HasPrefix(o.Verdict, "goto ") {
					o.Verdict += backwards
				}
				all = append(all, o)
			}
		case netstate.Filter:
			if hasTwin(o.Name) && o.Family != netstate.Ethernet {
				o.Name += backwards
				o.Rules = twinRules(o.Rules)
				all = append(all, o)
			}
		}
	}
	return all
}

// twinRules returns the rules of a chain's twin. What one allows goes on, to be judged in the other direction, too, or by the
// hook. A packet that begins an entry is answered with a reset if it is of TCP, so that programs connect anew at once; of
// others it is not known whether what denies them is there to stay.
func twinRules(rules string) string {
	var lines []string
	for line := range strings.SplitSeq(rules, "\n") {
		line = "backwards " + line
		if matches, drops := strings.CutSuffix(line, "counter drop"); drops {
			lines = append(lines, matches+"new counter reset")
		} else if allowed, accepts := strings.CutSuffix(line, "accept"); accepts {
			line = allowed + "return"
		} else if words := strings.Fields(line); slices.Contains([]string{"goto", "vmap", "log"}, words[len(words)-2]) {
			line += backwards
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
