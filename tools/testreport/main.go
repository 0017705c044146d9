// Command testreport runs "go test -json" with the arguments that it is given. It prints a line for each package
// as it ends, then failures with their output and skips with their reason, and closes with the number of tests
// passed, failed and skipped. A test with subtests counts by its subtests. A package that has tests of which none ran
// has not passed: it is shown as such and counted, and where CI is set it is a failure. With -v it also prints what the
// tests print, when they do.
//
// With -ledger=FILE as an argument, up to five tests that fail are run again, each alone. One that then passes gets a row
// in the ledger and a line FLAKY at the end. It has failed all the same, except where CI is set and the ledger has no
// other row of it.
//
// Under -short some tests are left out: those that say so, by internal/testall. With -left=FILE their names are written
// there. With -only=FILE the tests of such a file are run and no others, and one of which nothing is heard has failed.
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

// options are testreport's own arguments, which come first.
type options struct {
	ledger, left, only string // files
}

// split takes testreport's own arguments off those of go test.
func split(args []string) (o options, rest []string) {
	for own := map[string]*string{"-ledger": &o.ledger, "-left": &o.left, "-only": &o.only}; len(args) > 0; args = args[1:] {
		name, value, _ := strings.Cut(args[0], "=")
		if own[name] == nil {
			break
		}
		*own[name] = value
	}
	return o, args
}

// run returns the exit code: 1 when something failed or, in CI, ran no tests, 2 when the tests cannot be run.
func run(out io.Writer, args []string, ci bool) int {
	o, args := split(args)
	r := newReport(out)
	r.verbose = slices.Contains(args, "-v")
	err := r.all(o, args)
	var flaky []flake
	var twice []test
	if o.ledger != "" && err == nil {
		if flaky, err = r.again(args); err == nil {
			twice, err = record(o.ledger, time.Now(), flaky)
		}
	}
	if o.left != "" && err == nil {
		err = writeTests(o.left, r.left())
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

// all runs the tests of -only, or all that the arguments name.
func (r *report) all(o options, args []string) error {
	if o.only == "" {
		r.count(args)
		return r.run(args)
	}
	tests, err := readTests(o.only)
	if err != nil {
		return err
	}
	args = append(slices.Clone(args), selection(tests)...)
	r.count(args)
	if err := r.run(args); err != nil {
		return err
	}
	r.missing(tests)
	return nil
}
