// Command docs makes a static site of Documentation/ and of the Markdown files at the root: docs ROOT OUT. The site
// needs no server.
//
// It fails, and writes nothing, where a link leads nowhere, where Markdown is written in a way that programs read
// differently (lint.go), and where words are misspelt or hard to read (prose.go).
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: docs ROOT OUT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	s, err := load(root)
	if err != nil {
		return err
	}
	var problems []string
	speller := newSpeller()
	for _, p := range s.pages {
		for _, found := range [][]string{s.resolve(p), lint(p), speller.check(p)} {
			for _, text := range found {
				problems = append(problems, p.path+text)
			}
		}
	}
	for _, text := range problems {
		fmt.Fprintln(os.Stderr, text)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%d problems in the documents", len(problems))
	}
	if err := s.write(out); err != nil {
		return fmt.Errorf("write the site: %w", err)
	}
	fmt.Printf("%d pages in %s\n", len(s.pages), out)
	return nil
}
