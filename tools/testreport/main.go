// Command testreport runs "go test -json" with the arguments that it is given. It prints a line for each package
// as it ends, then failures with their output and skips with their reason, and closes with the number of tests
// passed, failed and skipped. A test with subtests counts by its subtests. A package that has tests of which none ran
// has not passed: it is shown as such and counted, and where CI is set it is a failure. With -v it also prints what the
// tests print, when they do.
//
// The tests time real kernels, clusters and processes on machines that others use too. Up to three packages that
// fail are run once more, unless the first argument is -once; one that then passes counts as passed, and the last lines
// name it with what had failed.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxAgain is the number of failed packages beyond which running them again would only take time.
const maxAgain = 3

func main() {
	os.Exit(run(os.Stdout, os.Args[1:], os.Getenv("CI") != ""))
}

// run returns the exit code: 1 when something failed or, if strict, ran no tests, 2 when the tests cannot be run.
func run(out io.Writer, args []string, strict bool) int {
	once := len(args) > 0 && args[0] == "-once"
	if once {
		args = args[1:]
	}
	r := newReport(out)
	r.verbose = slices.Contains(args, "-v")
	if err := r.run(args); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		return 2
	}
	var again []rerun
	if failed := r.failed(); len(failed) > 0 && len(failed) <= maxAgain && !once {
		first := r.forget(failed)
		fmt.Fprintf(out, "\nagain: %s\n", strings.Join(failed, " "))
		flags := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "." || strings.HasPrefix(a, "./") })
		if err := r.run(append(flags, failed...)); err != nil {
			fmt.Fprintln(os.Stderr, "testreport:", err)
			return 2
		}
		again = slices.DeleteFunc(first, func(f rerun) bool { return slices.Contains(r.failed(), f.pkg) })
	}
	if !r.print(again, strict) {
		return 1
	}
	return 0
}
