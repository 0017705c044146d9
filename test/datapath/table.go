package main

import (
	"fmt"
	"math"
	"strings"
)

// tables are the medians, and the medians of the rounds' ratios, in Markdown.
func (r results) tables() string {
	var b strings.Builder
	heading(&b)
	for _, g := range r.groups() {
		r.row(&b, g.String()+", nodes", figure, func(m measure) float64 { return r.node(g, m.of) })
		for _, fast := range []bool{false, true} {
			v := g.variant(fast)
			r.row(&b, g.String()+", pods, "+v.path(), figure, func(m measure) float64 { return r.pods(v, m.of) })
		}
	}
	b.WriteString("\n")
	heading(&b)
	for _, g := range r.groups() {
		for _, fast := range []bool{false, true} {
			v := g.variant(fast)
			r.row(&b, g.String()+", "+v.path()+" / node", ratio, func(m measure) float64 { return r.ofNode(v, m.of) })
		}
		r.row(&b, g.String()+", fast / plain", ratio, func(m measure) float64 { return r.ofPlain(g, m.of) })
	}
	return b.String()
}

func heading(b *strings.Builder) {
	b.WriteString("| |")
	for _, m := range measures {
		b.WriteString(" " + m.title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(measures)) + "\n")
}

// row writes a line of a table, and nothing if there is no value.
func (r results) row(b *strings.Builder, name string, format func(float64) string, value func(measure) float64) {
	line, empty := "| "+name+" |", true
	for _, m := range measures {
		x := value(m)
		empty = empty && math.IsNaN(x)
		line += " " + format(x) + " |"
	}
	if !empty {
		b.WriteString(line + "\n")
	}
}

// figure has three digits, and thousands a comma: 9.87, 98.7, 987, 98,765.
func figure(x float64) string {
	switch {
	case math.IsNaN(x):
		return ""
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	case x < 999.5:
		return fmt.Sprintf("%.0f", x)
	}
	whole := fmt.Sprintf("%.0f", x)
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return whole
}

func ratio(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return ""
	}
	return fmt.Sprintf("%.2f", x)
}
