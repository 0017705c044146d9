package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/twill-net/twill/internal/testall"
)

// event is one line of "go test -json" (cmd/test2json). What a compiler says carries an ImportPath in place of a
// Package; the packages that cannot be built because of it name that path in FailedBuild.
type event struct {
	Action, Package, Test, Output string
	ImportPath, FailedBuild       string
	Elapsed                       float64 // seconds
}

// test names a test; Name is empty for what concerns the whole package.
type test struct{ Package, Name string }

type report struct {
	out     io.Writer
	verbose bool
	output  map[test]string
	results map[test]string // pass, fail, skip or left (to make test-all)
	parents map[test]bool
	ended   map[string]string // packages: pass, fail, skip (has no test files) or none (ran no tests)
	builds  map[string]string // what the compiler said, by import path
	total   int               // packages, or 0 if it is not known
}

// flake is a test, without its subtests' names, that failed and passed when it was run again.
type flake struct {
	test
	output string
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[test]string{}, results: map[test]string{}, parents: map[test]bool{},
		ended: map[string]string{}, builds: map[string]string{}}
}

// run is one "go test"; its exit code says nothing that its output does not say.
func (r *report) run(args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := r.read(out); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && len(r.failed()) == 0 {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

func (r *report) read(out io.Reader) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			r.add(e)
		}
	}
	return lines.Err()
}

func (r *report) add(e event) {
	at := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[at] += e.Output
		if r.verbose {
			fmt.Fprint(r.out, e.Output)
		}
	case "build-output":
		r.builds[e.ImportPath] += e.Output
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.end(e)
			return
		}
		r.results[at] = e.Action
		if e.Action == "skip" && strings.Contains(r.output[at], testall.Reason) {
			r.results[at] = "left"
		}
		if i := strings.LastIndex(e.Test, "/"); i >= 0 {
			r.parents[test{e.Package, e.Test[:i]}] = true
		}
	}
}

// end takes the event with which a package ends.
func (r *report) end(e event) {
	result := e.Action
	if result == "pass" && !r.ran(e.Package) {
		result = "none"
	}
	r.ended[e.Package] = result
	if e.FailedBuild != "" {
		r.output[test{Package: e.Package}] += r.builds[e.FailedBuild]
		delete(r.builds, e.FailedBuild) // once is enough
	}
	progress := ""
	if r.total > 0 {
		progress = fmt.Sprintf(" (%d of %d)", len(r.ended), r.total)
	}
	fmt.Fprintf(r.out, "%-5s %7.1fs  %s%s\n", result, e.Elapsed, e.Package, progress)
}

// count sets the number of packages that the arguments of go test name.
func (r *report) count(args []string) {
	list := []string{"list"}
	for i, a := range args {
		switch {
		case a == "-tags" && i+1 < len(args):
			list = append(list, a, args[i+1])
		case strings.HasPrefix(a, "-tags="), strings.HasPrefix(a, "./"), strings.HasPrefix(a, "github.com/"):
			list = append(list, a)
		}
	}
	if out, err := exec.Command("go", list...).Output(); err == nil {
		r.total = strings.Count(string(out), "\n")
	}
}

// ran reports whether a test of a package ran, or was skipped by itself.
func (r *report) ran(pkg string) bool {
	for at := range r.results {
		if at.Package == pkg {
			return true
		}
	}
	return false
}

// failed are the packages that failed.
func (r *report) failed() []string { return r.endedAs("fail") }

func (r *report) endedAs(result string) []string {
	var list []string
	for _, pkg := range slices.Sorted(maps.Keys(r.ended)) {
		if r.ended[pkg] == result {
			list = append(list, pkg)
		}
	}
	return list
}

// maxAgain is the number of failed tests beyond which running them again would only take time.
const maxAgain = 5

// again runs each failed test again, alone, and returns those that pass then.
func (r *report) again(args []string) ([]flake, error) {
	tests := r.repeatable()
	if len(tests) > maxAgain {
		return nil, nil
	}
	flags := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "." || strings.HasPrefix(a, "./") })
	var flaky []flake
	for _, at := range tests {
		fmt.Fprintf(r.out, "\nagain: %s %s\n", at.Package, at.Name)
		f := flake{at, r.forget(at)}
		if err := r.run(append(slices.Clip(flags), "-run=^"+at.Name+"$", at.Package)); err != nil {
			return nil, err
		}
		if r.results[at] == "pass" {
			flaky = append(flaky, f)
		}
	}
	return flaky, nil
}

// repeatable returns the tests, without subtests, that failed in packages that came to their end: where the
// test program died, tests that it did not come to are missing.
func (r *report) repeatable() []test {
	var list []test
	for _, at := range r.bad() {
		ended := strings.Contains("\n"+r.output[test{Package: at.Package}], "\nFAIL\n")
		if r.results[at] == "fail" && ended && !strings.Contains(at.Name, "/") {
			list = append(list, at)
		}
	}
	return list
}

// forget drops what is known of a test and its subtests, and returns what those that failed printed.
func (r *report) forget(at test) (output string) {
	within := func(t test, _ string) bool {
		return t.Package == at.Package && (t.Name == at.Name || strings.HasPrefix(t.Name, at.Name+"/"))
	}
	for _, t := range r.bad() {
		if within(t, "") && r.results[t] == "fail" {
			output += r.output[t]
		}
	}
	maps.DeleteFunc(r.output, within)
	maps.DeleteFunc(r.results, within)
	delete(r.ended, at.Package)
	return output
}

// bad are the tests that failed or were skipped, and the packages that failed without a failing test: they did
// not build, or died.
func (r *report) bad() []test {
	var list []test
	culprit := map[string]bool{}
	for at, result := range r.results {
		if result != "pass" && result != "left" {
			list = append(list, at)
			culprit[at.Package] = culprit[at.Package] || result == "fail"
		}
	}
	for _, pkg := range r.failed() {
		if !culprit[pkg] {
			list = append(list, test{Package: pkg})
		}
	}
	slices.SortFunc(list, compare)
	return list
}

func compare(a, b test) int { return strings.Compare(a.Package+" "+a.Name, b.Package+" "+b.Name) }

// print reports whether no test failed at last and, in CI, every package ran one.
func (r *report) print(flaky []flake, twice []test, ci bool) bool {
	counts := r.counts()
	if !ci { // a test that passes only when it is run again has failed
		counts["pass"] -= len(flaky)
		counts["fail"] += len(flaky)
	}
	for _, at := range r.bad() {
		fmt.Fprintf(r.out, "\n--- %s %s\n%s", at.Package, at.Name, r.output[at])
	}
	for _, f := range flaky {
		fmt.Fprintf(r.out, "\n--- %s %s failed, and passed when it was run again alone:\n%s", f.Package, f.Name, f.output)
	}
	none := r.endedAs("none")
	for _, pkg := range none {
		fmt.Fprintf(r.out, "\n--- %s ran no tests:\n%s", pkg, r.output[test{Package: pkg}])
	}
	fmt.Fprintln(r.out)
	for _, f := range flaky {
		fmt.Fprintf(r.out, "FLAKY: %s %s failed, and passed when it was run again alone: write the cause into the ledger\n", f.Package, f.Name)
	}
	for _, at := range twice {
		fmt.Fprintf(r.out, "FLAKY: %s %s stands in the ledger twice: fix it before anything else\n", at.Package, at.Name)
	}
	if n := counts["left"]; n > 0 {
		fmt.Fprintf(r.out, "%d tests are left to make test-all: %s\n", n, r.needs())
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped", counts["pass"], counts["fail"], counts["skip"])
	if len(none) > 0 {
		fmt.Fprintf(r.out, ", %d packages ran no tests", len(none))
	}
	if len(flaky) > 0 {
		fmt.Fprintf(r.out, ", %d tests passed only when run again", len(flaky))
	}
	fmt.Fprintln(r.out)
	return counts["fail"] == 0 && (!ci || len(none) == 0)
}

// counts are the numbers of tests by result. A test with subtests counts by these, unless it failed by itself.
func (r *report) counts() map[string]int {
	counts := map[string]int{}
	for at, result := range r.results {
		if !r.parents[at] || result != "pass" {
			counts[result]++
		}
	}
	for _, at := range r.bad() {
		if at.Name == "" {
			counts["fail"]++
		}
	}
	return counts
}
