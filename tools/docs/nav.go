package main

import (
	"fmt"
	"strings"
)

// group is a part of the navigation.
type group struct {
	title string
	pages []*page
}

// outline is the order of the navigation, without Documentation/ and .md. A name that ends in / stands for all
// pages in that folder that have no place of their own.
var outline = []struct {
	title string
	names string
}{
	{"Start", "/README comparison faq"},
	{"Install", "install distributions/README distributions/ helm migration etcd docker upgrade uninstall"},
	{"Configure", "configuration backends/README backends/ cni"},
	{"Watch and debug", "debugging findings ui metrics drift reference/"},
	{"Understand", "lab architecture security decisions"},
	{"Results", "reliability benchmarks scale conformance"},
	{"Project", "/CHANGELOG roadmap development flaky /CONTRIBUTING /GOVERNANCE /SECURITY"},
}

// groups returns the navigation. Pages that have no place come after "Install", where new ones are
// usually about a distribution.
func (s *site) groups() ([]group, error) {
	placed := map[*page]bool{}
	all := make([]group, len(outline))
	for i, o := range outline {
		all[i].title = o.title
		for name := range strings.FieldsSeq(o.names) {
			if strings.HasSuffix(name, "/") {
				continue
			}
			p := s.byPath[pathOf(name)]
			if p == nil {
				return nil, fmt.Errorf("nav.go places %s, which does not exist", pathOf(name))
			}
			placed[p] = true
		}
	}
	for i, o := range outline {
		for name := range strings.FieldsSeq(o.names) {
			for _, p := range s.pages {
				in := strings.HasSuffix(name, "/") && strings.HasPrefix(p.path, "Documentation/"+name) && !placed[p]
				if in || p.path == pathOf(name) {
					placed[p] = true
					all[i].pages = append(all[i].pages, p)
				}
			}
		}
	}
	for _, p := range s.pages {
		if !placed[p] {
			all[1].pages = append(all[1].pages, p)
		}
	}
	return all, nil
}

// pathOf returns the file of a name in the outline.
func pathOf(name string) string {
	if root, ok := strings.CutPrefix(name, "/"); ok {
		return root + ".md"
	}
	return "Documentation/" + name + ".md"
}
