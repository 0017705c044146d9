package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// namedPort is a port by the name that pods give to it.
type namedPort struct {
	name     string
	protocol Protocol
}

// portRange is the port numbers from the first to the last.
type portRange struct{ first, last uint16 }

func (r portRange) String() string {
	if r.first == r.last {
		return fmt.Sprint(r.first)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}

// portClauses are conditions of the port, each with a space at its end: at most one for each protocol, and one for names.
func (w *chainWriter) portClauses(r rule) (clauses []string) {
	if r.anyPort {
		return []string{""}
	}
	spans, whole, named := map[Protocol][]portRange{}, map[Protocol]bool{}, map[string]namedPort{}
	for _, p := range r.ports {
		protocol := p.protocol()
		switch _, known := protocolNumbers[protocol]; {
		case !known:
		case p.Port == nil:
			whole[protocol] = true
		case p.Port.Type == intstr.String:
			named[string(protocol)+" "+p.Port.StrVal] = namedPort{p.Port.StrVal, protocol}
		default:
			if first, last, ok := p.span(); ok {
				spans[protocol] = append(spans[protocol], portRange{first, last})
			}
		}
	}
	for _, protocol := range []Protocol{TCP, UDP, SCTP} {
		switch all := joined(spans[protocol]); {
		case whole[protocol]:
			clauses = append(clauses, fmt.Sprintf("proto %d ", protocolNumbers[protocol]))
		case len(all) > 0:
			clauses = append(clauses, strings.ToLower(string(protocol))+" dport "+w.portSet(all)+" ")
		}
	}
	return append(clauses, w.names(named)...)
}

// joined returns disjoint ranges in order. Those that touch stay two, as policies name them.
func joined(all []portRange) (merged []portRange) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b portRange) int { return cmp.Compare(a.first, b.first) })
	for _, r := range all {
		if n := len(merged); n == 0 || merged[n-1].last < r.first {
			merged = append(merged, r)
		} else {
			merged[n-1].last = max(merged[n-1].last, r.last)
		}
	}
	return merged
}

// portSet is the range, or the set of the ranges.
func (w *chainWriter) portSet(all []portRange) string {
	if len(all) == 1 {
		return all[0].String()
	}
	name := "ports-" + hash(fmt.Sprint(all))
	w.spans[name] = all
	return "@" + name
}

// names is the condition that the pod's port has one of the names, which are given by protocol and name; none if there are none.
func (w *chainWriter) names(named map[string]namedPort) []string {
	if len(named) == 0 {
		return nil
	}
	set := "port-" + hash(fmt.Sprintf("%q", slices.Sorted(maps.Keys(named))))
	w.ports[set] = slices.Collect(maps.Values(named))
	return []string{"daddr . proto . port @" + set + " "}
}
