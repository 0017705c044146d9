package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Finding is one thing that is wrong on a node.
type Finding struct {
	ID       string   `json:"id"`       // of the catalogue
	Title    string   `json:"title"`    // one sentence: what is wrong
	Object   string   `json:"object"`   // what it is about: a peer, a device, a file
	Expected string   `json:"expected"` // what should be
	Actual   string   `json:"actual"`   // what is
	Why      string   `json:"why"`      // why it hurts
	Fix      string   `json:"fix"`      // the command or the edit that mends it
	Page     string   `json:"page"`     // in the documentation
	Severity Severity `json:"severity"`
	Count    int      `json:"count"` // objects that it is about
	More     []string `json:"more,omitempty"`
}

// Severity says what a finding means for pods.
type Severity string

// The severities.
const (
	Broken Severity = "broken" // pods are cut off, or will not start
	Risk   Severity = "risk"   // it works now, and will not always
)

// Kind is an entry of the catalogue: what can be found, in the order of likelihood to be the cause of what else is
// found. A device that is gone takes its routes with it, so it stands before routes.
type Kind struct {
	ID, Title string
	Severity  Severity
	Why       string
	Fix       string // for people; a finding has the exact command where there is one
	See       string // how to look by hand
}

// find makes a finding of the kind; a kind that is not in the catalogue is found by the test of the catalogue.
func find(id, object, expected, actual, fix string) Finding {
	k, _ := KindOf(id)
	return Finding{ID: id, Title: k.Title, Object: object, Expected: expected, Actual: actual, Why: k.Why, Fix: cmp.Or(fix, k.Fix),
		Page: "Documentation/doctor/" + id + ".md", Severity: k.Severity, Count: 1}
}

// KindOf is the catalogue's entry, and whether there is one.
func KindOf(id string) (Kind, bool) {
	i := rank(id)
	if i < 0 {
		return Kind{}, false
	}
	return Catalogue()[i], true
}

func rank(id string) int {
	return slices.IndexFunc(Catalogue(), func(k Kind) bool { return k.ID == id })
}

// Catalogue is all kinds of findings, the likeliest cause first.
func Catalogue() []Kind { return slices.Concat(pathKinds(), podKinds(), otherKinds()) }

// check is one group of checks.
type check func(Facts) []Finding

// Check is everything that is wrong, the likeliest cause first. Findings of one kind are merged.
func Check(f Facts) []Finding { return merge(checkAll(f)) }

// checkAll is Check with every finding by itself.
func checkAll(f Facts) []Finding {
	var all []Finding
	for _, c := range []check{checkLease, checkUnderlay, checkDrift, checkSkips, checkWays, checkOverlaps, checkForwarding,
		checkFirewall, checkPods, checkEnv, checkCNI, checkIPAM, checkAgent, checkHost, checkProbes} {
		all = append(all, c(f)...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(rank(a.ID), rank(b.ID)) })
	return all
}

// mostShown is how many of one kind's objects a finding lists.
const mostShown = 5

// merge makes one finding of those of the same kind: a thousand missing routes have one cause.
func merge(all []Finding) []Finding {
	var merged []Finding
	for _, f := range all {
		last := len(merged) - 1
		if last < 0 || merged[last].ID != f.ID {
			merged = append(merged, f)
			continue
		}
		m := &merged[last]
		m.Count += f.Count
		if len(m.More) < mostShown {
			m.More = append(m.More, f.line())
		}
	}
	return merged
}

// line is the evidence in one line.
func (f Finding) line() string {
	text := f.Object
	if f.Actual != "" {
		text += ": " + f.Actual
	}
	if f.Expected != "" {
		text += fmt.Sprintf(" (expected %s)", f.Expected)
	}
	return strings.TrimSpace(text)
}
