package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/golangci/misspell"
	"github.com/yuin/goldmark/ast"
)

// wordList has what to write in place of what, one a line: "a regular expression → words". It begins with comments.
//
//go:embed words.txt
var wordList string

// speller knows words that are misspelt, and words that are better written otherwise.
type speller struct {
	misspelt *misspell.Replacer
	better   []better
}

// better is one line of the list.
type better struct {
	pattern *regexp.Regexp
	words   string
}

// newSpeller reads the lists. The language is British English, in which "recognize" and "recognise" are both right.
func newSpeller() *speller {
	s := &speller{misspelt: &misspell.Replacer{}}
	s.misspelt.AddRuleList(misspell.DictMain)
	for i := 0; i < len(misspell.DictBritish); i += 2 {
		pair := misspell.DictBritish[i : i+2]
		if strings.ReplaceAll(pair[0], "iz", "is") != pair[1] {
			s.misspelt.AddRuleList(pair)
		}
	}
	s.misspelt.Compile()
	for line := range strings.Lines(wordList) {
		pattern, words, ok := strings.Cut(strings.TrimSpace(line), " → ")
		if ok && !strings.HasPrefix(pattern, "#") {
			s.better = append(s.better, better{regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`), words})
		}
	}
	return s
}

// check returns what is wrong with the words of a page. Code is not looked at.
func (s *speller) check(p *page) (problems []string) {
	for n := range nodes(p.tree) {
		switch n.Kind() {
		case ast.KindParagraph, ast.KindTextBlock, ast.KindHeading:
		default:
			if n.Kind().String() != "TableCell" {
				continue
			}
		}
		words := prose(n, p.source)
		for _, text := range s.judge(words) {
			problems = append(problems, fmt.Sprintf(":%d: %s", p.where(n), text))
		}
	}
	return problems
}

// judge returns what is wrong with some words.
func (s *speller) judge(words string) (problems []string) {
	_, diffs := s.misspelt.Replace(name.ReplaceAllString(words, "…"))
	for _, d := range diffs {
		problems = append(problems, fmt.Sprintf("%q: want %q", d.Original, d.Corrected))
	}
	for _, b := range s.better {
		if m := b.pattern.FindString(words); m != "" {
			problems = append(problems, fmt.Sprintf("%q: want %s", m, b.words))
		}
	}
	fields := strings.Fields(words)
	for i, word := range fields[min(1, len(fields)):] {
		if strings.EqualFold(word, fields[i]) && isWord.MatchString(word) && !strings.EqualFold(word, "that") {
			problems = append(problems, fmt.Sprintf("%q stands twice", word))
		}
	}
	return problems
}

var (
	isWord = regexp.MustCompile(`^[A-Za-z]?[a-z]+$`)
	name   = regexp.MustCompile(`\S*(_|[A-Z]{2})\S*`) // of a field or the like
)

// prose returns the words of one block, with a mark for each piece of code.
func prose(block ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(block, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch {
		case !entering:
		case n.Kind() == ast.KindCodeSpan:
			b.WriteString("…")
			return ast.WalkSkipChildren, nil
		case n.Kind() == ast.KindText:
			t := n.(*ast.Text)
			b.Write(t.Value(source))
			if t.SoftLineBreak() || t.HardLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}
