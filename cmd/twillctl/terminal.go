package main

import (
	"cmp"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/plain"
)

// terminal is what a command prints to, if that is a terminal that takes control characters.
type terminal struct{ file *os.File }

// terminalOf returns the terminal behind a writer, and whether there is one.
func terminalOf(w io.Writer) (terminal, bool) {
	f, ok := plain.Raw(w).(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return terminal{}, false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return terminal{f}, err == nil
}

// height returns the terminal's lines.
func (t terminal) height() int {
	size, err := unix.IoctlGetWinsize(int(t.file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 24
	}
	return cmp.Or(int(size.Row), 24)
}

// Control sequences of terminals (ECMA-48).
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	bold   = "\x1b[1m"
	normal = "\x1b[m"

	noWrap    = "\x1b[?7l" // cut long lines off
	wrap      = "\x1b[?7h"
	home      = "\x1b[H"
	clearLine = "\x1b[K" // from the cursor on
	clearRest = "\x1b[J"
)

// colours reports whether the user wants them on a terminal: https://no-color.org.
func colours() bool { return os.Getenv("NO_COLOR") == "" }

// paint colours the text of a status. The text has no control characters yet.
func paint(text string) string {
	lines := strings.SplitAfter(text, "\n")
	header := lines[0]
	agent, version, findings := column(header, "AGENT"), column(header, "VERSION"), column(header, "FINDINGS")
	for i, line := range lines {
		switch {
		case line == "":
		case i == 0:
			lines[i] = coloured(line, bold, 0, len([]rune(line)))
		case strings.HasPrefix(line, "✗"):
			lines[i] = coloured(line, red, 0, len([]rune(line)))
		case !begins(line, agent) || !begins(line, findings): // an escaped character moved its columns
		default: // the last column first, because colours move what is behind them
			line = coloured(line, findingColour(cell(line, findings, len(line))), findings, len([]rune(line)))
			lines[i] = coloured(line, agentColour(cell(line, agent, version)), agent, version)
		}
	}
	return strings.Join(lines, "")
}

// column returns where a column begins, in characters.
func column(header, name string) int {
	return len([]rune(header[:max(0, strings.Index(header, name))]))
}

// begins reports whether a line has the beginning of a cell there.
func begins(line string, at int) bool {
	runes := []rune(line)
	return 0 < at && at < len(runes) && runes[at-1] == ' ' && runes[at] != ' '
}

// cell returns the text of a line between two columns.
func cell(line string, from, to int) string {
	runes := []rune(line)
	from, to = min(from, len(runes)), min(to, len(runes))
	return strings.TrimSpace(string(runes[from:to]))
}

// coloured colours a part of a line, without the spaces and the newline at its end.
func coloured(line, colour string, from, to int) string {
	runes := []rune(line)
	from, to = min(from, len(runes)), min(to, len(runes))
	text := string(runes[from:to])
	word := strings.TrimRight(text, " \n")
	if word == "" {
		return line
	}
	return string(runes[:from]) + colour + word + normal + text[len(word):] + string(runes[to:])
}

func agentColour(state string) string {
	switch state {
	case "ready":
		return green
	case "running":
		return yellow
	}
	return red
}

func findingColour(findings string) string {
	if findings == "none" {
		return green
	}
	return red
}
