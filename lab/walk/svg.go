package walk

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/twill-net/twill/packet"
)

// The picture's measures, in pixels.
const (
	svgWidth  = 900 // at least: IPv6 addresses are longer
	svgMargin = 24
	svgBand   = 132 // the host's name stands here
	svgHead   = 22  // height of a header
	svgLine   = 20  // height of a table's entry
	svgTitle  = 26  // height of a step's first line
	svgPad    = 12
	svgGap    = 22 // between hosts
	svgInner  = 26 // by which a wrapped frame is indented
	svgTable  = 84 // the table's name stands here
)

// palette has a colour for every host, in the order in which the packet meets them.
var palette = []string{"#3b6ea5", "#3f8f5b", "#8a6d3b", "#8b5fa8", "#c8782a", "#3d8f8f", "#b04a50"}

var headerColour = map[string]string{
	"eth":       "#e3ecf7",
	"ip":        "#e0f0df",
	"udp":       "#fdf3d3",
	"tcp":       "#fdf3d3",
	"vxlan":     "#fbdcc0",
	"wireguard": "#fbdcc0",
	"icmp":      "#f3e0ec",
}

var tableColour = map[string]string{
	"route":     "#3f8f5b",
	"neighbour": "#3b6ea5",
	"fdb":       "#c8782a",
	"bridge":    "#8b5fa8",
	"vxlan":     "#b04a50",
}

// drawing is a picture under way.
type drawing struct {
	strings.Builder
	width, y int
	before   []string // the headers of the step before
}

// WriteSVG renders the path as a picture: a card for each host, in it the devices that saw the packet, each with its
// headers, those that changed outlined, and the table entries that decided.
func (p Path) WriteSVG(w io.Writer) error {
	d := &drawing{width: p.width(), y: 72}
	for i, first := 0, 0; i < len(p.Steps); i++ {
		if i+1 == len(p.Steps) || p.Steps[i+1].Host != p.Steps[i].Host {
			d.card(p.Steps[first:i+1], first, palette[p.hosts(first)%len(palette)], i+1 < len(p.Steps))
			first = i + 1
		}
	}
	colour := "#3f8f5b"
	if !p.Arrived {
		colour = "#b04a50"
	}
	d.text(svgMargin, d.y+16, p.end(), fmt.Sprintf(`font-size="14" font-weight="600" fill="%s"`, colour))
	var b strings.Builder
	fmt.Fprintf(
		&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="12">`+"\n",
		d.width,
		d.y+36,
	)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	var title drawing
	title.text(svgMargin, 34, p.From+" → "+p.To, `font-size="20" font-weight="600" fill="#222"`)
	title.text(
		svgMargin,
		54,
		fmt.Sprintf("%s → %s, header by header and table by table", p.Src, p.Dst),
		`fill="#666"`,
	)
	b.WriteString(title.String() + d.String() + "</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// hosts is how many different hosts come before a step.
func (p Path) hosts(step int) int {
	var names []string
	for _, s := range p.Steps[:step] {
		if !slices.Contains(names, s.Host) {
			names = append(names, s.Host)
		}
	}
	if i := slices.Index(names, p.Steps[step].Host); i >= 0 {
		return i
	}
	return len(names)
}

// width is what the longest row needs.
func (p Path) width() int {
	widest := svgWidth
	for _, s := range p.Steps {
		for i, row := range rows(s.Frame) {
			width := 2*svgMargin + svgBand + 2*svgPad + i*svgInner
			for _, l := range row {
				width += headerWidth(l)
			}
			widest = max(widest, width)
		}
		for _, e := range s.Entries {
			widest = max(widest, 2*svgMargin+svgBand+svgPad+svgTable+8*len([]rune(e.Text)))
		}
	}
	return widest
}

// headerWidth is a header's: a monospaced character of 11 pixels is 6.6 wide.
func headerWidth(l packet.Layer) int { return 7*len([]rune(l.String())) + 12 }

func (s Step) height() int {
	return svgTitle + len(rows(s.Frame))*(svgHead+4) + len(s.Entries)*svgLine + svgPad
}

// card draws one host's steps; more says that the packet goes on to another.
func (d *drawing) card(steps []Step, number int, colour string, more bool) {
	height := svgPad
	for _, s := range steps {
		height += s.height()
	}
	fmt.Fprintf(
		d,
		`<rect x="%d" y="%d" width="%d" height="%d" rx="8" fill="#fcfcfc" stroke="%s" stroke-opacity="0.5"/>`+"\n",
		svgMargin,
		d.y,
		d.width-2*svgMargin,
		height,
		colour,
	)
	fmt.Fprintf(d, `<path d="M%d %d h%d v%d h-%d a8 8 0 0 1 -8 -8 v-%d a8 8 0 0 1 8 -8 z" fill="%s"/>`+"\n",
		svgMargin+8, d.y, svgBand-8, height, svgBand-8, height-16, colour)
	fmt.Fprintf(
		d,
		`<text x="%d" y="%d" fill="white" font-size="14" font-weight="600" text-anchor="middle">%s</text>`+"\n",
		svgMargin+svgBand/2,
		d.y+height/2+5,
		html.EscapeString(steps[0].Host),
	)
	d.y += svgPad / 2
	for i, s := range steps {
		if i > 0 {
			fmt.Fprintf(
				d,
				`<line x1="%d" y1="%d" x2="%d" y2="%[2]d" stroke="#ddd"/>`+"\n",
				svgMargin+svgBand+svgPad,
				d.y,
				d.width-svgMargin-svgPad,
			)
		}
		d.step(s, number+i+1, colour)
	}
	d.y += svgPad / 2
	if more {
		fmt.Fprintf(
			d,
			`<path d="M%d %d v%d m-5 -6 l5 6 l5 -6" fill="none" stroke="#888" stroke-width="1.5"/>`+"\n",
			svgMargin+svgBand/2,
			d.y+4,
			svgGap-8,
		)
	}
	d.y += svgGap
}

// step draws one device that saw the packet.
func (d *drawing) step(s Step, number int, colour string) {
	x, y := svgMargin+svgBand+svgPad, d.y
	fmt.Fprintf(d, `<circle cx="%d" cy="%d" r="9" fill="%s"/>`+"\n", x+9, y+14, colour)
	fmt.Fprintf(
		d,
		`<text x="%d" y="%d" fill="white" font-size="10" font-weight="600" text-anchor="middle">%d</text>`+"\n",
		x+9,
		y+18,
		number,
	)
	d.text(
		x+26,
		y+18,
		map[bool]string{true: "out through ", false: "in through "}[s.Out]+s.Dev,
		`font-weight="600" fill="#222"`,
	)
	y += svgTitle
	var now []string
	for i, row := range rows(s.Frame) {
		now = append(now, d.headers(x+i*svgInner, y, row)...)
		if i > 0 { // what is wrapped hangs below its wrapping
			fmt.Fprintf(
				d,
				`<path d="M%d %d v%d h%d" fill="none" stroke="#999"/>`+"\n",
				x+(i-1)*svgInner+8,
				y-4,
				svgHead/2+4,
				svgInner-10,
			)
		}
		y += svgHead + 4
	}
	for _, e := range s.Entries {
		fmt.Fprintf(
			d,
			`<rect x="%d" y="%d" width="%d" height="15" rx="7" fill="%s"/>`+"\n",
			x,
			y+3,
			svgTable-10,
			tableColour[e.Table],
		)
		fmt.Fprintf(
			d,
			`<text x="%d" y="%d" fill="white" font-size="10" text-anchor="middle">%s</text>`+"\n",
			x+(svgTable-10)/2,
			y+14,
			html.EscapeString(e.Table),
		)
		d.text(x+svgTable, y+15, e.Text, `fill="#333"`)
		y += svgLine
	}
	d.before, d.y = now, d.y+s.height()
}

// headers draws one row, and outlines what the step before did not have.
func (d *drawing) headers(x, y int, row []packet.Layer) (texts []string) {
	for _, l := range row {
		text, width, stroke := l.String(), headerWidth(l), `stroke="#c4c4c4"`
		if len(d.before) > 0 && !slices.Contains(d.before, text) {
			stroke = `stroke="#333" stroke-width="1.6"`
		}
		fmt.Fprintf(
			d,
			`<rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="%s" %s/>`+"\n",
			x,
			y,
			width-3,
			svgHead,
			headerColour[l.Kind],
			stroke,
		)
		d.text(x+5, y+15, text, `font-size="11"`)
		texts = append(texts, text)
		x += width
	}
	return texts
}

// rows are the layers, a wrapped frame's in a row of their own.
func rows(f packet.Frame) [][]packet.Layer {
	var rows [][]packet.Layer
	for i, l := range f.Layers {
		if i == 0 || l.Kind == "eth" {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], l)
	}
	return rows
}

func (d *drawing) text(x, y int, s, attributes string) {
	fmt.Fprintf(d, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(s))
}
