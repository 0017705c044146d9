package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// repository is where files are that are no part of the site.
const repository = "https://github.com/twill-net/twill/"

// resolve makes the links of a page those of the site, and returns a sentence for each that leads nowhere.
func (s *site) resolve(p *page) (problems []string) {
	for n := range nodes(p.tree) {
		var dest *[]byte
		switch n := n.(type) {
		case *ast.Link:
			dest = &n.Destination
		case *ast.Image:
			dest = &n.Destination
		default:
			continue
		}
		url, err := s.target(p, string(*dest))
		if err != nil {
			problems = append(problems, fmt.Sprintf(":%d: %v", p.where(n), err))
			continue
		}
		*dest = []byte(url)
	}
	return problems
}

// target returns the URL of what a page links to.
func (s *site) target(p *page, link string) (string, error) {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return link, nil
	}
	file, anchor, _ := strings.Cut(link, "#")
	full := p.path
	if file != "" {
		full = path.Join(path.Dir(p.path), file)
	}
	if to := s.byPath[full]; to != nil {
		if anchor == "" {
			return relative(p.url, to.url), nil
		}
		if !to.has(anchor) {
			return "", fmt.Errorf("the link %s leads nowhere: %s has no heading of that name", link, full)
		}
		return relative(p.url, to.url) + "#" + anchor, nil
	}
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(full)))
	switch {
	case err != nil || strings.HasPrefix(full, ".."):
		return "", fmt.Errorf("the link %s leads nowhere: there is no %s", link, full)
	case info.IsDir() && s.byPath[full+"/README.md"] != nil:
		return relative(p.url, s.byPath[full+"/README.md"].url), nil
	case info.IsDir():
		return repository + "tree/main/" + full, nil
	case strings.HasSuffix(full, ".svg") || strings.HasSuffix(full, ".png"):
		url := "images/" + path.Base(full)
		if other := s.assets[url]; other != "" && other != full {
			return "", fmt.Errorf("%s and %s have one name: rename one", full, other)
		}
		s.assets[url] = full
		return relative(p.url, url), nil
	}
	return repository + "blob/main/" + full, nil
}

// relative returns the link from one page of the site to a file of it.
func relative(from, to string) string { return strings.Repeat("../", strings.Count(from, "/")) + to }
