package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// TestLists: every entry of the lists is one mutant of its package.
func TestLists(t *testing.T) {
	t.Chdir("../..")
	files, err := fs.Glob(lists, "equivalent/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		dir := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".txt"), "-", "/")
		listed, err := equivalents(lists, dir)
		if err != nil {
			t.Fatal(err)
		}
		mutants, err := find(dir)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for _, m := range mutants {
			found[m.identity()]++
		}
		for id := range listed {
			if found[id] != 1 {
				t.Errorf("%s lists what is %d mutants of %s, want one:\n%s", file, found[id], dir, id)
			}
		}
	}
}

// TestEquivalent: a mutant that is listed is not tried, wherever its line is now.
func TestEquivalent(t *testing.T) {
	inModule(t, tests)
	if err := os.Mkdir("m", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"m.go", "m_test.go"} {
		if err := os.Rename(name, filepath.Join("m", name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	lists := fstest.MapFS{"equivalent/m.txt": {Data: []byte(`m.go Max
	if a >= b {
	> in place of >=
Of two equal numbers either is the greater one.

m.go Max
	t := T{A: 1, B: 2}
	9 in place of 2
It is in another function.
`)}}
	var out strings.Builder
	score, err := options{out: &out, lists: lists, n: 100, timeout: time.Minute}.run([]string{"./m"})
	if err != nil || score != 100*5./7 || !strings.Contains(out.String(), "5 of 7 killed, 71 %; 1 equivalent, 0 did not") {
		t.Errorf("score %v, %v:\n%s", score, err, out.String())
	}
	if strings.Contains(out.String(), "> in place of >=") {
		t.Errorf("the mutant that is listed was tried:\n%s", out.String())
	}
}

// TestBadLists: an entry has a reason, and is there once.
func TestBadLists(t *testing.T) {
	entry := "m.go Max\n\tif a >= b {\n\t> in place of >=\n"
	for name, text := range map[string]string{
		"want a file": entry, "lists twice": entry + "One reason.\n\n" + entry + "Another one.\n",
	} {
		_, err := equivalents(fstest.MapFS{"equivalent/a-b.txt": {Data: []byte(text)}}, "./a/b")
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want that it says %q", err, name)
		}
	}
}
