// Command testreport runs "go test -json" with the arguments that it is given. It prints a line for each package
// as it ends, then failures with their output and skips with their reason, and closes with the number of tests
// passed, failed and skipped. A test with subtests counts by its subtests.
//
// The tests time real kernels, clusters and processes on machines that others use too. Up to three packages that
// fail are run once more; one that then passes counts as passed, and is named with what had failed, so that it is
// seen and mended.
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

// maxAgain is the number of failed packages beyond which running them again would only take time.
const maxAgain = 3

func main() {
	r := newReport()
	if err := r.run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(2)
	}
	if failed := r.failed(); len(failed) > 0 && len(failed) <= maxAgain {
		first := r.forget(failed)
		fmt.Printf("\nagain: %s\n", strings.Join(failed, " "))
		flags := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return strings.HasPrefix(a, "./") })
		if err := r.run(append(flags, failed...)); err != nil {
			fmt.Fprintln(os.Stderr, "testreport:", err)
			os.Exit(2)
		}
		for _, pkg := range failed {
			if !slices.Contains(r.failed(), pkg) {
				fmt.Printf("\n%s failed once and passed when it was run again:\n%s", pkg, first[pkg])
			}
		}
	}
	if !r.print() {
		os.Exit(1)
	}
}

// event is one line of "go test -json" (cmd/test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// test names a test; Name is empty for what concerns the whole package.
type test struct{ Package, Name string }

type report struct {
	output  map[test]string
	results map[test]string // pass, fail or skip
	parents map[test]bool
	ended   map[string]string // packages
}

func newReport() *report {
	return &report{output: map[test]string{}, results: map[test]string{}, parents: map[test]bool{}, ended: map[string]string{}}
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
	case "output", "build-output":
		r.output[at] += e.Output
	case "pass", "fail", "skip":
		if e.Test == "" {
			fmt.Printf("%-5s %7.1fs  %s\n", e.Action, e.Elapsed, e.Package)
			r.ended[e.Package] = e.Action
			return
		}
		r.results[at] = e.Action
		if i := strings.LastIndex(e.Test, "/"); i >= 0 {
			r.parents[test{e.Package, e.Test[:i]}] = true
		}
	}
}

// failed are the packages that failed.
func (r *report) failed() []string {
	var list []string
	for _, pkg := range slices.Sorted(maps.Keys(r.ended)) {
		if r.ended[pkg] == "fail" {
			list = append(list, pkg)
		}
	}
	return list
}

// forget drops what is known of packages and returns, by package, the output of what failed there.
func (r *report) forget(pkgs []string) map[string]string {
	said := map[string]string{}
	for _, at := range r.bad() {
		if slices.Contains(pkgs, at.Package) {
			said[at.Package] += r.output[at]
		}
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

// print is false when something failed.
func (r *report) print() bool {
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
		fmt.Printf("\n--- %s %s\n%s", at.Package, at.Name, r.output[at])
	}
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", counts["pass"], counts["fail"], counts["skip"])
	return counts["fail"] == 0
}
