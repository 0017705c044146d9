package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// page is one Markdown file.
type page struct {
	path     string // from the repository's root
	url      string // from the site's root
	source   []byte
	tree     ast.Node
	title    string
	headings []heading
}

// heading is one of a page's, its title among them.
type heading struct {
	level    int
	text, id string
	start    int // in the source
}

// site is all pages, by path, and the files that pages show.
type site struct {
	root   string
	pages  []*page
	byPath map[string]*page
	assets map[string]string // URL → path
}

// markdown reads what GitHub does.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM))

// reference has the pages that "make reference" makes. On the site they are a folder of Documentation.
const reference = "bin/reference"

// load reads all Markdown files in Documentation and the reference, and after them those at the root. The search lists
// them in this order.
func load(root string) (*site, error) {
	s := &site{root: root, byPath: map[string]*page{}, assets: map[string]string{}}
	var files []string
	err := filepath.WalkDir(filepath.Join(root, "Documentation"), func(file string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(file, ".md") {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the documents: %w", err)
	}
	for _, pattern := range []string{reference + "/*.md", "*.md"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		s.add(newPage(strings.Replace(filepath.ToSlash(name), reference, "Documentation/reference", 1), source))
	}
	if s.byPath["README.md"] == nil {
		return nil, errors.New("there is no README.md: want the repository's root as first argument")
	}
	return s, nil
}

func (s *site) add(p *page) {
	s.pages = append(s.pages, p)
	s.byPath[p.path] = p
}

func newPage(name string, source []byte) *page {
	p := &page{path: name, url: pageURL(name), source: source, title: name}
	p.tree = markdown.Parser().Parse(text.NewReader(source))
	seen := map[string]int{}
	for n := range nodes(p.tree) {
		h, ok := n.(*ast.Heading)
		if !ok {
			continue
		}
		words := plainText(h, source)
		id := slug(words)
		seen[id]++
		if n := seen[id]; n > 1 {
			id += "-" + strconv.Itoa(n-1)
		}
		h.SetAttributeString("id", []byte(id))
		if h.Level == 1 {
			p.title = words
		}
		p.headings = append(p.headings, heading{h.Level, words, id, h.Lines().At(0).Start})
	}
	return p
}

// pageURL returns where a Markdown file is on the site: those at the root but README are in a folder of their own,
// because Documentation has some of the same names.
func pageURL(name string) string {
	if name == "README.md" {
		return "index.html"
	}
	short, in := strings.CutPrefix(strings.TrimSuffix(name, ".md"), "Documentation/")
	if !in {
		return "project/" + strings.ToLower(short) + ".html"
	}
	if path.Base(short) == "README" {
		short = path.Join(path.Dir(short), "index")
	}
	return short + ".html"
}

// slug returns the anchor that GitHub gives a heading.
func slug(words string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, words)
}

// nodes yields a node and all below it, in the order of the text.
func nodes(tree ast.Node) func(yield func(ast.Node) bool) {
	return func(yield func(ast.Node) bool) {
		_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if entering && !yield(n) {
				return ast.WalkStop, nil
			}
			return ast.WalkContinue, nil
		})
	}
}

// plainText returns what a reader sees of a node, code included.
func plainText(tree ast.Node, source []byte) string {
	var b bytes.Buffer
	for n := range nodes(tree) {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		}
	}
	return b.String()
}

// line returns the number of the line at an offset.
func (p *page) line(offset int) int { return 1 + bytes.Count(p.source[:offset], []byte("\n")) }

// where returns the number of the line on which a node begins.
func (p *page) where(n ast.Node) int {
	for m := range nodes(n) {
		if t, ok := m.(*ast.Text); ok {
			return p.line(t.Segment.Start)
		}
		if m.Type() == ast.TypeBlock && m.Lines() != nil && m.Lines().Len() > 0 {
			return p.line(m.Lines().At(0).Start)
		}
	}
	if n.Parent() != nil && n.Parent().Kind() != ast.KindDocument {
		return p.where(n.Parent())
	}
	return 1
}

// has reports whether a page has an anchor.
func (p *page) has(id string) bool {
	return slices.ContainsFunc(p.headings, func(h heading) bool { return h.id == id })
}
