package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/internal/testall"
)

// left are the tests that said they are left to make test-all, in order.
func (r *report) left() []test {
	var list []test
	for at, result := range r.results {
		if result == "left" {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, compare)
	return list
}

// needs counts the tests that are left by what they need.
func (r *report) needs() string {
	counts := map[string]int{}
	for _, at := range r.left() {
		_, need, _ := strings.Cut(r.output[at], testall.Reason+": it needs ")
		need, _, _ = strings.Cut(need, "\n")
		counts[need]++
	}
	var parts []string
	for _, need := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d need %s", counts[need], need))
	}
	return strings.Join(parts, ", ")
}

// writeTests writes a line for each test: the package, a tab, the name.
func writeTests(path string, tests []test) error {
	var b strings.Builder
	for _, at := range tests {
		fmt.Fprintf(&b, "%s\t%s\n", at.Package, at.Name)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// readTests reads what writeTests wrote.
func readTests(path string) ([]test, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: make test writes it", err)
	}
	var tests []test
	for line := range strings.Lines(string(text)) {
		pkg, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			return nil, fmt.Errorf("%s: %q is not a package, a tab and a test", path, line)
		}
		tests = append(tests, test{pkg, name})
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("%s names no test", path)
	}
	return tests, nil
}

// selection are the arguments with which go test runs these tests: one alternative of -run for each name, and the
// packages. A test of the same name in another of these packages runs, too.
func selection(tests []test) []string {
	patterns, packages := map[string]bool{}, map[string]bool{}
	for _, at := range tests {
		elements := strings.Split(at.Name, "/")
		for i, e := range elements {
			elements[i] = "^" + regexp.QuoteMeta(e) + "$"
		}
		patterns[strings.Join(elements, "/")] = true
		packages[at.Package] = true
	}
	run := "-run=" + strings.Join(slices.Sorted(maps.Keys(patterns)), "|")
	inOrder := slices.Sorted(maps.Keys(packages))
	slices.Reverse(inOrder) // those of test/ take longest, and go test begins with the first
	return append([]string{run}, inOrder...)
}

// missing fails the tests of which nothing was heard.
func (r *report) missing(tests []test) {
	for _, at := range tests {
		if r.results[at] == "" && r.ended[at.Package] != "fail" {
			r.results[at] = "fail"
			r.output[at] = "it was left out by make test, and did not run here\n"
		}
	}
}
