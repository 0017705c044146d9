package doctor

import (
	"strings"

	docs "github.com/twill-net/twill/Documentation"
)

// heals is the fix of everything that a running agent repairs.
const heals = "start twilld, which repairs it"

// flannelHeals is the same on a node whose agent is flannel's, which writes once.
const flannelHeals = "restart flannel on this node, which writes it when it starts"

var (
	entries   = read(docs.Findings)
	catalogue = byKind(entries)
)

// Catalogue returns all kinds of findings, the likeliest cause first.
func Catalogue() []Kind { return entries }

// read returns the entries of the page, in their order. One is a heading with the ID and three paragraphs: the severity
// with the title, why and fix. The commands after that are for people.
func read(page string) []Kind {
	var all []Kind
	for i, text := range strings.Split(page, "\n### ")[1:] {
		text, _, _ = strings.Cut(text, "\n    ")
		text = strings.Join(strings.Fields(strings.ReplaceAll(text, "`", "")), " ")
		id, text, _ := strings.Cut(text, " **")
		severity, text, _ := strings.Cut(text, "**: ")
		title, text, _ := strings.Cut(text, " Why: ")
		why, fix, _ := strings.Cut(text, " Fix: ")
		all = append(all, Kind{ID: id, Severity: Severity(severity), Title: title, Why: why, Fix: fix, place: i})
	}
	return all
}

func byKind(all []Kind) map[kind]Kind {
	m := map[kind]Kind{}
	for _, k := range all {
		m[kind(k.ID)] = k
	}
	return m
}
