package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Measures of the picture, in pixels.
const (
	fontSize   = 13
	advance    = 7.83 // of a letter: 0.602 of the size in DejaVu Sans Mono, Menlo and Consolas about the same
	lineHeight = 19
	margin     = 18
	bar        = 34 // the window's upper edge
)

// style has the colours, and lights up one line after another: all can be read from the start.
const style = `text { white-space: pre; fill: #d7dde3; }
.c { fill: #ffffff; font-weight: 600; }
.r { fill: #7f8b97; }
.b { fill: #ff7b72; }
.g { fill: #7ee787; }
@media (prefers-reduced-motion: no-preference) {
  g { animation: light 200ms both; }
  @keyframes light { from { opacity: 0.45; } to { opacity: 1; } }
}
`

// draw writes the picture of a terminal.
func draw(b *bytes.Buffer, lines []line) {
	columns := 0
	for _, l := range lines {
		columns = max(columns, utf8.RuneCountInString(l.text))
	}
	width, height := int(float64(columns)*advance)+2*margin, bar+len(lines)*lineHeight+margin
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="%d">`+"\n",
		width, height, width, height, fontSize)
	fmt.Fprintf(b, "<style>\n%s</style>\n", style)
	fmt.Fprintln(b, `<rect width="100%" height="100%" rx="8" fill="#161b22"/>`)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(b, `<circle cx="%d" cy="17" r="5.5" fill="%s"/>`+"\n", margin+6+18*i, colour)
	}
	for i, l := range lines {
		if l.text == "" {
			continue
		}
		fmt.Fprintf(b, `<g style="animation-delay:%.2fs">`, l.at.Seconds())
		for _, p := range pieces(l.text) {
			fmt.Fprintf(b, `<text x="%.1f" y="%d"%s>`, margin+float64(p.column)*advance, bar+(i+1)*lineHeight-5, p.class)
			_ = xml.EscapeText(b, []byte(p.text)) // a Buffer takes everything
			b.WriteString("</text>")
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
}

// piece is what stands at one place of a line. Each has its own, because fonts do not agree on how wide a ✗ is.
type piece struct {
	text, class string
	column      int
}

// spaced is text without two spaces in a row, or a sign, which may be wider than a letter.
var spaced = regexp.MustCompile(`[✗✓·←→⋮…]|[^ ✗✓·←→⋮…]+(?: [^ ✗✓·←→⋮…]+)*`)

// pieces cuts a line, and colours commands, remarks and findings.
func pieces(text string) []piece {
	command, remark, _ := strings.Cut(text, "     # ")
	isCommand := strings.HasPrefix(text, "$ ")
	var all []piece
	for _, at := range spaced.FindAllStringIndex(text, -1) {
		p := piece{text: text[at[0]:at[1]], column: utf8.RuneCountInString(text[:at[0]])}
		switch {
		case isCommand && remark != "" && at[0] >= len(command), p.text == omitted:
			p.class = ` class="r"`
		case isCommand:
			p.class = ` class="c"`
		case strings.HasPrefix(text, "✗"), p.text == "✗":
			p.class = ` class="b"`
		case strings.HasPrefix(text, "    fix"):
			p.class = ` class="g"`
		}
		all = append(all, p)
	}
	return all
}
