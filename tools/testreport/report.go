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
	results map[test]string // pass, fail or skip
	parents map[test]bool
	ended   map[string]string // packages: pass, fail, skip (has no test files) or none (ran no tests)
	builds  map[string]string // what the compiler said, by import path
}

// rerun is a package that failed and passed when it was run again.
type rerun struct {
	pkg    string
	tests  []string // that failed
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
	fmt.Fprintf(r.out, "%-5s %7.1fs  %s\n", result, e.Elapsed, e.Package)
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

// forget drops what is known of packages and returns what failed there.
func (r *report) forget(pkgs []string) []rerun {
	var said []rerun
	bad := r.bad()
	for _, pkg := range pkgs {
		f := rerun{pkg: pkg}
		for _, at := range bad {
			if at.Package == pkg && r.results[at] != "skip" {
				f.output += r.output[at]
				f.tests = append(f.tests, at.Name)
			}
		}
		said = append(said, f)
	}
	drop := func(at test, _ string) bool { return slices.Contains(pkgs, at.Package) }
	maps.DeleteFunc(r.output, drop)
	maps.DeleteFunc(r.results, drop)
	maps.DeleteFunc(r.ended, func(pkg, _ string) bool { return slices.Contains(pkgs, pkg) })
	return said
}

// bad are the tests that failed or were skipped, and the packages that failed without a failing test: they did
// not build, or died.
func (r *report) bad() []test {
	var list []test
	culprit := map[string]bool{}
	for at, result := range r.results {
		if result != "pass" {
			list = append(list, at)
			culprit[at.Package] = culprit[at.Package] || result == "fail"
		}
	}
	for _, pkg := range r.failed() {
		if !culprit[pkg] {
			list = append(list, test{Package: pkg})
		}
	}
	slices.SortFunc(list, func(a, b test) int { return strings.Compare(a.Package+" "+a.Name, b.Package+" "+b.Name) })
	return list
}

// print reports whether all is well.
func (r *report) print(again []rerun, strict bool) bool {
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
		fmt.Fprintf(r.out, "\n--- %s %s\n%s", at.Package, at.Name, r.output[at])
	}
	for _, f := range again {
		fmt.Fprintf(r.out, "\n--- %s failed and passed when it was run again:\n%s", f.pkg, f.output)
	}
	none := r.endedAs("none")
	for _, pkg := range none {
		fmt.Fprintf(r.out, "\n--- %s ran no tests:\n%s", pkg, r.output[test{Package: pkg}])
	}
	fmt.Fprintln(r.out)
	for _, f := range again {
		fmt.Fprintf(r.out, "FLAKY: %s failed and passed when it was run again: %s\n", f.pkg, strings.Join(f.tests, " "))
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped", counts["pass"], counts["fail"], counts["skip"])
	if len(none) > 0 {
		fmt.Fprintf(r.out, ", %d packages ran no tests", len(none))
	}
	if len(again) > 0 {
		fmt.Fprintf(r.out, ", %d packages passed only when run again", len(again))
	}
	fmt.Fprintln(r.out)
	return counts["fail"] == 0 && (!strict || len(none) == 0)
}
