// Command testreport reads the output of "go test -json" from standard input. It prints a line for each package
// as it ends, then failures with their output and skips with their reason, and closes with the number of tests
// passed, failed and skipped. A test with subtests counts by its subtests.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of "go test -json" (cmd/test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

type report struct {
	output  map[string][]string // by package and test
	results map[string]string   // pass, fail or skip by package and test
	parents map[string]bool
	broken  []string // packages that failed without a failing test: they did not build, or died
}

func main() {
	r, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(2)
	}
	if !r.print() {
		os.Exit(1)
	}
}

func read(f io.Reader) (*report, error) {
	r := &report{output: map[string][]string{}, results: map[string]string{}, parents: map[string]bool{}}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			r.add(e)
		}
	}
	return r, lines.Err()
}

func (r *report) add(e event) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		r.output[name] = append(r.output[name], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
			return
		}
		r.results[name] = e.Action
		if i := strings.LastIndex(e.Test, "/"); i >= 0 {
			r.parents[e.Package+" "+e.Test[:i]] = true
		}
	}
}

func (r *report) endPackage(e event) {
	fmt.Printf("%-5s %7.1fs  %s\n", e.Action, e.Elapsed, e.Package)
	if e.Action != "fail" {
		return
	}
	for name, result := range r.results {
		if result == "fail" && strings.HasPrefix(name, e.Package+" ") {
			return
		}
	}
	r.broken = append(r.broken, e.Package+" ")
}

// print is false when something failed.
func (r *report) print() bool {
	counts := map[string]int{"fail": len(r.broken)}
	bad := slices.Clone(r.broken)
	for name, result := range r.results {
		if r.parents[name] && result == "pass" {
			continue
		}
		counts[result]++
		if result != "pass" {
			bad = append(bad, name)
		}
	}
	slices.Sort(bad)
	for _, name := range bad {
		fmt.Printf("\n--- %s\n%s", name, strings.Join(r.output[name], ""))
	}
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", counts["pass"], counts["fail"], counts["skip"])
	return counts["fail"] == 0
}
