package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"
)

// maxLine is how long a line of text may be. Tables and code cannot be wrapped, nor can a long link.
const maxLine = 120

var (
	fence   = regexp.MustCompile("^\\s*(```|~~~)")
	atxLine = regexp.MustCompile(`^#{1,6}( |$)`)
	comment = regexp.MustCompile(`(?s)^<!--.*-->\s*$`)
	// Sentences of the programs are not wrapped.
	generated = regexp.MustCompile(`^Documentation/reference/`)

	link = regexp.MustCompile(`\]\([^)]*\)`)
)

// lint returns what is wrong with how a page is written. The rules are those of markdownlint that find real errors:
// text that GitHub and other programs show differently, or that a reader of the source does not expect.
func lint(p *page) []string {
	l := linter{page: p}
	l.lines()
	l.outline()
	for n := range nodes(p.tree) {
		l.node(n)
	}
	return l.found
}

type linter struct {
	*page
	found []string
}

func (l *linter) report(line int, format string, args ...any) {
	l.found = append(l.found, fmt.Sprintf(":%d: ", line)+fmt.Sprintf(format, args...))
}

// lines checks what the parser does not tell: white space, long lines, and blank lines around headings and code.
func (l *linter) lines() {
	lines := strings.Split(string(l.source), "\n")
	inCode, previous := false, ""
	for i, line := range lines {
		n := i + 1
		isFence := fence.MatchString(line)
		switch {
		case isFence && !inCode && previous != "" && !strings.HasPrefix(line, " ") && !comment.MatchString(previous):
			l.report(n, "no blank line before code")
		case isFence:
		case inCode:
			previous = line
			continue
		case strings.TrimRight(line, " \t\r") != line:
			l.report(n, "white space at the end of the line")
		case strings.Contains(line, "\t"):
			l.report(n, "a tab: want spaces")
		case line == "" && previous == "" && n < len(lines) && n > 1:
			l.report(n, "more than one blank line")
		case atxLine.MatchString(line) && previous != "" && !comment.MatchString(previous):
			l.report(n, "no blank line before a heading")
		case atxLine.MatchString(previous) && line != "":
			l.report(n, "no blank line after a heading")
		case length(line) > maxLine && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") &&
			!generated.MatchString(l.path):
			l.report(n, "%d letters: want at most %d", length(line), maxLine)
		}
		if isFence {
			inCode = !inCode
		}
		previous = line
	}
	if inCode {
		l.report(len(lines), "code without an end")
	}
	if !strings.HasSuffix(string(l.source), "\n") {
		l.report(len(lines), "no newline at the end")
	}
}

// length returns the letters of a line, without where its links lead.
func length(line string) int { return utf8.RuneCountInString(link.ReplaceAllString(line, "]")) }

// outline checks the headings: one title, at the top, and no level left out.
func (l *linter) outline() {
	if _, ok := l.tree.FirstChild().(*ast.Heading); !ok {
		l.report(1, "want a title first: # …")
	}
	var above [7]string // the last heading of each level
	seen := map[string]bool{}
	level := 0
	for n := range nodes(l.tree) {
		h, ok := n.(*ast.Heading)
		if !ok {
			continue
		}
		at, words := l.where(h), plainText(h, l.source)
		if (h.Level == 1) != (level == 0) {
			l.report(at, "%q has level %d: want one title, and sections of level 2 or more", words, h.Level)
		} else if h.Level > level+1 {
			l.report(at, "%q has level %d after level %d", words, h.Level, level)
		}
		above[h.Level], level = words, h.Level
		if full := strings.Join(above[:h.Level+1], "/"); seen[full] {
			l.report(at, "two headings %q: the anchor of one is that of the other", words)
		} else {
			seen[full] = true
		}
		if strings.HasSuffix(words, ".") || strings.HasSuffix(words, ":") {
			l.report(at, "%q: want no full stop or colon at the end of a heading", words)
		}
	}
}

// node checks one piece of the text.
func (l *linter) node(n ast.Node) {
	switch n := n.(type) {
	case *ast.HTMLBlock:
		var b strings.Builder
		for i := range n.Lines().Len() {
			seg := n.Lines().At(i)
			b.Write(seg.Value(l.source))
		}
		if !comment.MatchString(b.String()) {
			l.report(l.where(n), "HTML: want Markdown")
		}
	case *ast.RawHTML:
		l.report(l.where(n), "HTML in the text: want Markdown, or `code`")
	case *ast.Image:
		if plainText(n, l.source) == "" {
			l.report(l.where(n), "a picture without a description")
		}
	case *ast.Link:
		switch words := plainText(n, l.source); strings.ToLower(words) {
		case "", "more", "here", "this", "link", "click here":
			l.report(l.where(n), "a link named %q: want what it leads to", words)
		}
	case *ast.List:
		if !n.IsOrdered() && n.Marker != '-' {
			l.report(l.where(n), "a list of %c: want -", n.Marker)
		}
	case *ast.Paragraph:
		strong, ok := n.FirstChild().(*ast.Emphasis)
		words := plainText(n, l.source)
		if ok && n.ChildCount() == 1 && strong.Level == 2 && !strings.ContainsAny(words, ".:?") {
			l.report(l.where(n), "%q in bold: want a heading", words)
		}
		// The parser takes a table whose rows do not fit its head for a paragraph.
		if n.Lines().Len() > 0 {
			if first := n.Lines().At(0); strings.HasPrefix(string(first.Value(l.source)), "|") {
				l.report(l.where(n), "this is no table: want a head, and a line |---| with as many cells")
			}
		}
	case *east.TableRow:
		l.row(n)
	}
}

// row checks that a row has the cells of its table's head. The parser cuts off what is too much.
func (l *linter) row(n *east.TableRow) {
	at := l.where(n)
	lines := strings.Split(string(l.source), "\n")
	cells := strings.Count(strings.ReplaceAll(strings.Trim(lines[at-1], " |"), `\|`, ""), "|") + 1
	if want := len(n.Parent().(*east.Table).Alignments); cells > want {
		l.report(at, "a row of %d cells in a table of %d: write \\| in text", cells, want)
	}
}
