// Command testreport runs "go test -json" with the arguments that it is given. It prints a line for each package
// as it ends, then failures with their output and skips with their reason, and closes with the number of tests
// passed, failed and skipped. A test with subtests counts by its subtests. A package that has tests of which none ran
// has not passed: it is shown as such and counted, and where CI is set it is a failure. With -v it also prints what the
// tests print, when they do.
//
// The tests time real kernels, clusters and processes on machines that others use too. With -ledger=FILE as the first
// argument, up to five tests that fail are run again, each alone. One that then passes gets a row in the ledger and a
// line FLAKY at the end. It fails the run all the same, except where CI is set and the ledger has no other row of it.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	os.Exit(run(os.Stdout, os.Args[1:], os.Getenv("CI") != ""))
}

// run returns the exit code: 1 when something failed or, in CI, ran no tests, 2 when the tests cannot be run.
func run(out io.Writer, args []string, ci bool) int {
	path := ""
	if len(args) > 0 && strings.HasPrefix(args[0], "-ledger=") {
		path, args = strings.TrimPrefix(args[0], "-ledger="), args[1:]
	}
	r := newReport(out)
	r.verbose = slices.Contains(args, "-v")
	err := r.run(args)
	var flaky []flake
	var twice []test
	if path != "" && err == nil {
		if flaky, err = r.again(args); err == nil {
			twice, err = record(path, time.Now(), flaky)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		return 2
	}
	passed := r.print(flaky, twice, ci)
	if !passed || len(twice) > 0 || len(flaky) > 0 && !ci {
		return 1
	}
	return 0
}
