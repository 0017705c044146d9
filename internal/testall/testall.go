// Package testall marks the tests that `make test` leaves to `make test-all`.
package testall

import "testing"

// Reason begins what a test says that is left out. tools/testreport counts such tests apart from those that are
// skipped, and runs them in make test-all.
const Reason = "left to make test-all"

// Needs skips a test under -short, as `make test` has it, since what it needs takes longer to build or to install
// than the test to run. What is there already makes no difference: `make test` runs the same tests everywhere.
func Needs(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("%s: it needs %s", Reason, what)
	}
}
