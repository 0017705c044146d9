package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// lists name the mutants that people found to be equivalent, one file a package: agent-pods.txt is agent/pods.
//
//go:embed equivalent/*.txt
var lists embed.FS

// list returns the name of the list of the package in dir.
func list(dir string) string {
	return "equivalent/" + strings.ReplaceAll(filepath.ToSlash(filepath.Clean(dir)), "/", "-") + ".txt"
}

// identity is what names m in a list: the file and the function, the line of source, and what is changed in it. It has
// no number of a line, so that it survives edits.
func (m mutant) identity() string {
	begin := strings.LastIndexByte(string(m.source[:m.start]), '\n') + 1
	line, _, _ := strings.Cut(string(m.source[begin:]), "\n")
	return identity(filepath.Base(m.file)+" "+m.function, line, m.change())
}

func identity(where, line, change string) string {
	return strings.TrimSpace(where) + "\n" + strings.TrimSpace(line) + "\n" + strings.TrimSpace(change)
}

// equivalents returns the identities of the mutants that are listed for the package in dir.
func equivalents(lists fs.FS, dir string) (map[string]bool, error) {
	text, err := fs.ReadFile(lists, list(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	listed := map[string]bool{}
	for stanza := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		lines := strings.Split(stanza, "\n")
		if len(lines) < 4 {
			return nil, fmt.Errorf("%s: want a file and a function, a line, a change and a reason, got\n%s", list(dir), stanza)
		}
		id := identity(lines[0], lines[1], lines[2])
		if listed[id] {
			return nil, fmt.Errorf("%s lists twice\n%s", list(dir), id)
		}
		listed[id] = true
	}
	return listed, nil
}
