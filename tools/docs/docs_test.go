package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestLint(t *testing.T) {
	const title = "# A title\n\n"
	for _, c := range []struct{ name, text, want string }{
		{"good", title + "Text with `code` and [a link](https://example.org).\n\n- a\n- b\n\n| a | b |\n|---|---|\n| `x\\|y` | 2 |\n", ""},
		{"generated part", title + "Text.\n\n<!-- rows -->\n## Section\n", ""},
		{"no title", "Text.\n", ":1: want a title first"},
		{"two titles", title + "# Another\n", ":3: \"Another\" has level 1"},
		{"level left out", title + "### Deep\n", ":3: \"Deep\" has level 3 after level 1"},
		{"headings of one name", title + "## Same\n\n## Same\n", ":5: two headings \"Same\""},
		{"one name in two sections", title + "## A\n\n### Same\n\n## B\n\n### Same\n", ""},
		{"heading that ends in a colon", title + "## This:\n", "no full stop or colon"},
		{"trailing space", title + "Text. \n", ":3: white space at the end"},
		{"tab", title + "a\tb\n", ":3: a tab"},
		{"tab in code", title + "```\na\tb\n```\n", ""},
		{"blank lines", title + "a\n\n\nb\n", ":5: more than one blank line"},
		{"heading without blank lines", title + "a\n## B\nc\n", ":4: no blank line before a heading"},
		{"code without a blank line", title + "a\n```\nb\n```\n", ":4: no blank line before code"},
		{"open code", title + "```\na\n", "code without an end"},
		{"long line", title + strings.Repeat("word ", 24) + "word\n", ":3: 124 letters"},
		{"long link", title + "[a](https://example.org/" + strings.Repeat("x", 120) + ")\n", ""},
		{"no newline", title + "a", "no newline at the end"},
		{"HTML", title + "a <b>bold</b> word\n", ":3: HTML in the text"},
		{"HTML block", title + "<div>\n\na\n\n</div>\n", "HTML: want Markdown"},
		{"picture without words", title + "![](a.svg)\n", "a picture without a description"},
		{"bold for a heading", title + "**Section**\n\nText.\n", ":3: \"Section\" in bold: want a heading"},
		{"bold words", title + "**Question?**\n\n**Word** and more.\n", ""},
		{"link without a name", title + "([more](https://example.org))\n", ":3: a link named \"more\""},
		{"other list", title + "* a\n", ":3: a list of *"},
		{"row with too many cells", title + "| a | b |\n|---|---|\n| x|y | 2 |\n", ":5: a row of 3 cells in a table of 2"},
		{"no table", title + "| a | b |\n|---|\n| x | 2 |\n", "this is no table"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, lint(newPage("Documentation/a.md", []byte(c.text))), c.want)
		})
	}
}

// expect fails unless one of the problems has the words, or there are none and no words.
func expect(t *testing.T, found []string, want string) {
	t.Helper()
	all := strings.Join(found, "\n")
	if want == "" && all != "" || !strings.Contains(all, want) {
		t.Errorf("found %q, want %q", all, want)
	}
}

func TestProse(t *testing.T) {
	s := newSpeller()
	for text, want := range map[string]string{
		"The agent receives a packet.":                  "",
		"The agent recieves a packet.":                  `"recieves": want "receives"`,
		"The color of a route.":                         `"color": want "colour"`,
		"An interface is recognized or recognised.":     "",
		"`recieve` is code":                             "",
		"The names temp_prefered_lft and COLOR":         "",
		"It runs in order to\nlive.":                    `"in order to": want to`,
		"| a |\n|---|\n| utilizes |\n":                  `"utilizes": want use`,
		"Packets of the\nthe node are lost.":            `"the" stands twice`,
		"A Wireguard device":                            "want WireGuard",
		"A WireGuard device, as wireguard in `wg show`": "",
	} {
		expect(t, s.check(newPage("a.md", []byte(text))), want)
	}
}

func TestSlug(t *testing.T) {
	p := newPage("a.md", []byte("# `--flag`: what's *this*?\n\n## net-conf.json: the network\n\n## Same\n\n## Same\n\n## Über 5 µs\n"))
	for _, id := range []string{"--flag-whats-this", "net-confjson-the-network", "same", "same-1", "über-5-µs"} {
		if !p.has(id) {
			t.Errorf("there is no %s in %v", id, p.headings)
		}
	}
}

// newSite makes a repository with some pages.
func newSite(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := writeFile(root, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLinks(t *testing.T) {
	root := newSite(t, map[string]string{"README.md": "# R\n\n## Part\n", "Documentation/a.md": "# A\n", "Documentation/d/README.md": "# D\n", "bin/reference/f.md": "# F\n",
		"deploy/x.yaml": "", "Documentation/p.svg": ""})
	s, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	from := s.byPath["Documentation/d/README.md"]
	for link, want := range map[string]string{
		"https://example.org/a.md#b": "https://example.org/a.md#b",
		"../a.md":                    "../a.html",
		"../reference/f.md":          "../reference/f.html",
		"../../README.md#part":       "../index.html#part",
		"#d":                         "../d/index.html#d",
		"../d":                       "../d/index.html",
		"../p.svg":                   "../images/p.svg",
		"../../deploy/x.yaml":        repository + "blob/main/deploy/x.yaml",
		"../../deploy":               repository + "tree/main/deploy",
		"../../README.md#parts":      "error: the link ../../README.md#parts leads nowhere: README.md has no heading of that name",
		"../b.md":                    "error: the link ../b.md leads nowhere: there is no Documentation/b.md",
		"../../../README.md":         "error: the link ../../../README.md leads nowhere: there is no ../README.md",
	} {
		got, err := s.target(from, link)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s leads to %s, want %s", link, got, want)
		}
	}
}

// TestBrokenLink: nothing is written, and the error says where the link is.
func TestBrokenLink(t *testing.T) {
	root := newSite(t, map[string]string{"README.md": "# R\n\n[a](Documentation/b.md)\n", "Documentation/a.md": "# A\n"})
	out := filepath.Join(t.TempDir(), "out")
	if err := run(root, out); err == nil || err.Error() != "1 problems in the documents" {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("the site was written")
	}
}

// TestSite makes the site of this repository, and follows all links of it.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := run(filepath.Join("..", ".."), out); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	err := filepath.Walk(out, func(file string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		files[file] = string(data)
		return err
	})
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	links := 0
	for file, text := range files {
		if !strings.HasSuffix(file, ".html") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, ":") {
				continue
			}
			links++
			target := file
			if to != "" {
				target = filepath.Join(filepath.Dir(file), to)
			}
			there, ok := files[target]
			if !ok || anchor != "" && !strings.Contains(there, ` id="`+anchor+`"`) {
				t.Errorf("%s: %s leads nowhere", file, m[1])
			}
		}
	}
	if links < 1000 {
		t.Errorf("%d links found, there are more: this test does not see them", links)
	}
}
