package walk

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/twill-net/twill/packet"
)

// WriteJSON renders the path for programs.
func (p Path) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(p)
}

// WriteText renders the path for people.
func (p Path) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s) → %s (%s)\n", p.From, p.Src, p.To, p.Dst)
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "\n%2d  %s\n", i+1, s.title())
		for _, line := range lines(s.Frame) {
			fmt.Fprintf(&b, "      %s\n", line)
		}
		for _, e := range s.Entries {
			fmt.Fprintf(&b, "    → %-9s  %s\n", e.Table, e.Text)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", p.end())
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Step) title() string {
	if s.Out {
		return s.Host + ": out through " + s.Dev
	}
	return s.Host + ": in through " + s.Dev
}

// end is the path's result in a sentence.
func (p Path) end() string {
	switch {
	case p.Arrived:
		return "The packet arrived; the ping: " + p.Reply + "."
	case len(p.Steps) == 0:
		return "The packet was not seen anywhere; the ping: " + p.Reply + "."
	}
	last := p.Steps[len(p.Steps)-1]
	return fmt.Sprintf(
		"The packet was seen last at %s, %s, and did not arrive; the ping: %s.",
		last.Host,
		last.Dev,
		p.Reply,
	)
}

// lines are the frame's headers, those of a wrapped frame on a line of their own.
func lines(f packet.Frame) []string {
	var lines []string
	var line []string
	for _, l := range f.Layers {
		if l.Kind == "eth" && len(line) > 0 {
			lines, line = append(lines, strings.Join(line, " | ")), nil
		}
		line = append(line, l.String())
	}
	lines = append(lines, strings.Join(line, " | "))
	lines[len(lines)-1] += fmt.Sprintf(" (%d bytes in all)", f.Length)
	return lines
}
