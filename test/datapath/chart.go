package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// The chart's measures, in pixels.
const (
	chartMargin = 24
	chartHead   = 84  // the title and the legend stand here
	panelWidth  = 260 // of one measure
	panelHeight = 218
	panelGap    = 16
	panelsInRow = 3
	barsTop     = 54  // below the panel's name
	barsHeight  = 130 // of the tallest bar
	barWidth    = 25
)

// The picture has a background of its own, because a page may be light while its reader's system is dark.
const chartStyle = `<style>
.back { fill: #ffffff } .text { fill: #222222 } .faint { fill: #666666 } .line { stroke: #d8d8d8 } .node { stroke: #666666 }
.plain { fill: #9aa7b5 } .fast { fill: #2f75b5 } .value { fill: #222222; stroke: #ffffff; stroke-width: 3px; paint-order: stroke }
@media (prefers-color-scheme: dark) {
.back { fill: #16191d } .text { fill: #e6e6e6 } .faint { fill: #a0a6ad } .line { stroke: #3a4047 } .node { stroke: #a0a6ad }
.plain { fill: #6d7986 } .fast { fill: #5aa5e6 } .value { fill: #e6e6e6; stroke: #16191d }
}
</style>
`

// writeChart draws the ratios between pods and nodes as bars: a panel for each measure, in it a group for each backend and
// family, in it a bar for each path.
func (r results) writeChart(w io.Writer, conditions string) error {
	var panels []measure
	for _, m := range measures {
		if m.name != "" {
			panels = append(panels, m)
		}
	}
	rows := (len(panels) + panelsInRow - 1) / panelsInRow
	width := 2*chartMargin + panelsInRow*panelWidth + (panelsInRow-1)*panelGap
	height := chartHead + rows*(panelHeight+panelGap) + chartMargin
	d := &chart{results: r}
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="'DejaVu Sans', Verdana, Arial, sans-serif" font-size="12">`+"\n", width, height)
	d.WriteString(chartStyle + `<rect width="100%" height="100%" class="back"/>` + "\n")
	d.text(chartMargin, 34, `font-size="18" font-weight="600" class="text"`, "Pods compared with their nodes (= 1)")
	d.text(chartMargin, 54, `class="faint"`, conditions)
	for i, path := range []string{"plain", "fast"} {
		x := chartMargin + i*120
		fmt.Fprintf(d, `<rect x="%d" y="64" width="12" height="12" rx="2" class="%s"/>`+"\n", x, path)
		d.text(x+18, 75, `class="text"`, path+" path")
	}
	for i, m := range panels {
		d.panel(chartMargin+i%panelsInRow*(panelWidth+panelGap), chartHead+panelGap+i/panelsInRow*(panelHeight+panelGap), m)
	}
	d.WriteString("</svg>\n")
	_, err := io.WriteString(w, d.String())
	return err
}

// chart is a picture under way.
type chart struct {
	strings.Builder
	results results
}

// panel draws one measure; x and y are its upper left corner.
func (d *chart) panel(x, y int, m measure) {
	better := "higher is better"
	if m.lower {
		better = "lower is better"
	}
	d.text(x, y+12, `font-weight="600" class="text"`, m.name)
	d.text(x, y+28, `font-size="10" class="faint"`, better)
	top := d.results.top(m)
	base := y + barsTop + barsHeight
	level := func(value float64) int { return base - int(math.Round(value/top*barsHeight)) }
	d.line(x, base, "line", "")
	d.line(x, level(1), "node", ` stroke-dasharray="4 3"`)
	groups := d.results.groups()
	for i, g := range groups {
		each := panelWidth / len(groups)
		left := x + i*each + each/2 - barWidth - 1
		for j, fast := range []bool{false, true} {
			v := g.variant(fast)
			value := d.results.ofNode(v, m.of)
			if math.IsNaN(value) || math.IsInf(value, 0) {
				continue
			}
			at, upper := left+j*(barWidth+2), level(value)
			fmt.Fprintf(d, `<rect x="%d" y="%d" width="%d" height="%d" class="%s"/>`+"\n", at, upper, barWidth, base-upper, v.path())
			d.text(at+barWidth/2, upper-4, `font-size="10" text-anchor="middle" class="value"`, ratio(value))
		}
		d.text(left+barWidth+1, base+15, `font-size="11" text-anchor="middle" class="text"`, g.backend)
		d.text(left+barWidth+1, base+29, `font-size="10" text-anchor="middle" class="faint"`, g.family.String())
	}
}

// top is the highest ratio of a measure, and not below that of the nodes.
func (r results) top(m measure) float64 {
	top := 1.0
	for _, v := range allVariants() {
		if value := r.ofNode(v, m.of); value > top && !math.IsInf(value, 0) {
			top = value
		}
	}
	return top
}

func (d *chart) line(x, y int, class, more string) {
	fmt.Fprintf(d, `<path d="M%d %d h%d" class="%s"%s/>`+"\n", x, y, panelWidth, class, more)
}

func (d *chart) text(x, y int, attributes, s string) {
	fmt.Fprintf(d, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(s))
}
