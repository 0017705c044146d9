package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed style.css
	style []byte
	//go:embed search.js
	search []byte
)

// nameCell is a cell of a table that holds the name of a flag or the like, which stays on one line.
var nameCell = regexp.MustCompile(`<td><code>([^ <]{1,40})</code></td>`)

// view is what the template shows of a page.
type view struct {
	Title, Root, Source string // Source is empty for a page that is made from the code
	Body                template.HTML
	Groups              []groupView
}

type groupView struct {
	Title string
	Links []linkView
}

type linkView struct {
	Title, URL string
	Current    bool
	Sections   []linkView // of the current page
}

// write renders all pages into a directory, which it makes anew.
func (s *site) write(out string) error {
	groups, err := s.groups()
	if err != nil {
		return err
	}
	t, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	for _, p := range s.pages {
		var body, all bytes.Buffer
		if err := markdown.Renderer().Render(&body, p.source, p.tree); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		text := nameCell.ReplaceAllString(body.String(), `<td class="name"><code>$1</code></td>`)
		v := view{Title: p.title, Root: relative(p.url, ""), Body: template.HTML(text), // of our own Markdown
			Groups: viewGroups(groups, p)}
		if !generated.MatchString(p.path) {
			v.Source = repository + "blob/main/" + p.path
		}
		if err := t.Execute(&all, v); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		if err := writeFile(out, p.url, all.Bytes()); err != nil {
			return err
		}
	}
	return s.writeAssets(out)
}

// writeAssets writes what the pages show or run.
func (s *site) writeAssets(out string) error {
	for url, file := range s.assets {
		data, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		if err := writeFile(out, url, data); err != nil {
			return err
		}
	}
	index, err := s.index()
	if err != nil {
		return err
	}
	if err := writeFile(out, "search.js", append(index, search...)); err != nil {
		return err
	}
	return writeFile(out, "style.css", style)
}

func writeFile(out, url string, data []byte) error {
	file := filepath.Join(out, filepath.FromSlash(url))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// index returns the list that the search looks through, as a statement of JavaScript: pages opened from a file
// cannot load anything else. An entry is a section: its heading, its page's title, where it is, and its text.
func (s *site) index() ([]byte, error) {
	var all [][4]string
	for _, p := range s.pages {
		for i, h := range p.headings {
			url := p.url
			if h.level > 1 {
				url += "#" + h.id
			}
			end := len(p.source)
			if i+1 < len(p.headings) {
				end = p.headings[i+1].start
			}
			words := link.ReplaceAllString(string(p.source[h.start:end]), "]")
			all = append(all, [4]string{h.text, p.title, url, strings.Join(strings.Fields(words), " ")})
		}
	}
	list, err := json.Marshal(all)
	return []byte("const index = " + string(list) + ";\n"), err
}

// viewGroups returns the navigation, as one page shows it.
func viewGroups(groups []group, current *page) []groupView {
	var all []groupView
	for _, g := range groups {
		v := groupView{Title: g.title}
		for _, p := range g.pages {
			l := linkView{Title: short(p), URL: relative(current.url, p.url), Current: p == current}
			if l.Current {
				l.Sections = sections(p)
			}
			v.Links = append(v.Links, l)
		}
		all = append(all, v)
	}
	return all
}

// short returns the title of a page among others of its kind.
func short(p *page) string {
	if name, _, ok := strings.Cut(p.title, ": "); ok && strings.HasPrefix(p.url, "backends/") {
		return name
	}
	return p.title
}

// sections returns the headings of level 2, unless the page is short.
func sections(p *page) []linkView {
	var all []linkView
	for _, h := range p.headings {
		if h.level == 2 {
			all = append(all, linkView{Title: h.text, URL: "#" + h.id})
		}
	}
	if len(all) < 3 {
		return nil
	}
	return all
}
