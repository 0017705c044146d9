package walk

import (
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/twill-net/twill/doctor/capture"
)

// The picture's measures, in pixels.
const (
	svgWidth   = 900 // at least: IPv6 addresses are longer
	svgMargin  = 20
	svgLine    = 18
	svgHeaders = 22 // height of a header
	svgGap     = 14
	svgBand    = 150 // the host's name stands here
)

// palette has a colour for every host, in the order in which the packet meets them.
var palette = []string{"#4e79a7", "#59a14f", "#9c755f", "#b07aa1", "#f28e2b", "#76b7b2", "#e15759"}

var headerColour = map[string]string{"eth": "#d4e4f4", "ip": "#d9ead3", "udp": "#fff2cc", "vxlan": "#f9cb9c", "icmp": "#ead1dc"}

// WriteSVG renders the path as a picture: from top to bottom the devices that saw the packet, each with its headers
// and the table entries that decided.
func (p Path) WriteSVG(w io.Writer) error {
	var body strings.Builder
	y, colours, width := 56, map[string]string{}, p.width()
	for i, s := range p.Steps {
		if colours[s.Host] == "" {
			colours[s.Host] = palette[len(colours)%len(palette)]
		}
		height := s.draw(&body, box{i + 1, y, width, colours[s.Host]})
		y += height + svgGap
		if i+1 < len(p.Steps) {
			fmt.Fprintf(&body, `<path d="M%d %d l6 8 l6 -8 z" fill="#888"/>`+"\n", svgMargin+svgBand/2-6, y-svgGap+3)
		}
	}
	text(&body, svgMargin, y+12, p.end(), `font-weight="bold"`)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="12">`+"\n", width, y+32)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	text(&b, svgMargin, 32, fmt.Sprintf("%s (%s) → %s (%s)", p.From, p.Src, p.To, p.Dst), `font-size="18" font-weight="bold"`)
	b.WriteString(body.String() + "</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// width is what the longest row of headers needs.
func (p Path) width() int {
	widest := svgWidth
	for _, s := range p.Steps {
		for _, row := range rows(s.Frame) {
			width := 2*svgMargin + svgBand + 20
			for _, l := range row {
				width += headerWidth(l)
			}
			widest = max(widest, width)
		}
		for _, e := range s.Entries {
			widest = max(widest, 2*svgMargin+svgBand+20+7*(len([]rune(e.Text))+16))
		}
	}
	return widest
}

// headerWidth is a header's: a monospaced character of 11 pixels is 6.6 wide.
func headerWidth(l capture.Layer) int { return 7*len([]rune(l.String())) + 12 }

// box is where a step is drawn.
type box struct {
	number, y, width int
	colour           string
}

// draw draws one step and returns its height.
func (s Step) draw(b *strings.Builder, in box) int {
	y, colour := in.y, in.colour
	rows := rows(s.Frame)
	height := svgLine + len(rows)*(svgHeaders+4) + len(s.Entries)*svgLine + 10
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="#fafafa" stroke="%s" stroke-width="1.5"/>`+"\n",
		svgMargin, y, in.width-2*svgMargin, height, colour)
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s"/>`+"\n", svgMargin, y, svgBand, height, colour)
	text(b, svgMargin+8, y+18, fmt.Sprintf("%d  %s", in.number, s.Host), `fill="white" font-weight="bold"`)
	at, x := y+16, svgMargin+svgBand+10
	text(b, x, at, map[bool]string{true: "out through ", false: "in through "}[s.Out]+s.Dev, `font-weight="bold"`)
	at += 6
	for _, row := range rows {
		drawHeaders(b, x, at, row)
		at += svgHeaders + 4
	}
	for _, e := range s.Entries {
		at += svgLine
		text(b, x, at-6, fmt.Sprintf("→ %-9s  %s", e.Table, e.Text), `fill="#333" xml:space="preserve"`)
	}
	return height
}

// rows are the layers, a wrapped frame's in a row of their own.
func rows(f capture.Frame) [][]capture.Layer {
	var rows [][]capture.Layer
	for i, l := range f.Layers {
		if i == 0 || l.Kind == "eth" {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], l)
	}
	return rows
}

func drawHeaders(b *strings.Builder, x, y int, row []capture.Layer) {
	for _, l := range row {
		label, width := l.String(), headerWidth(l)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s" stroke="#999"/>`+"\n", x, y, width, svgHeaders, headerColour[l.Kind])
		text(b, x+6, y+15, label, `font-size="11"`)
		x += width
	}
}

func text(b *strings.Builder, x, y int, s, attributes string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(s))
}
