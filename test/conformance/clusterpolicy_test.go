package main

import "testing"

// TestSummarizeGo: tests within TestConformance are counted, and of what is within those, failures are named.
func TestSummarizeGo(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		passed           int
	}{
		{"no test", "PASS\n", "0 passed, 0 failed, 0 skipped\n", 0},
		{"tests and their parts", `=== RUN   TestConformance
    suite.go:100: waiting
--- FAIL: TestConformance (20.00s)
    --- PASS: TestConformance/Ingress (8.50s)
        --- PASS: TestConformance/Ingress/allow (1.00s)
    --- FAIL: TestConformance/EgressSCTP (9.00s)
        --- PASS: TestConformance/EgressSCTP/allow (1.00s)
        --- FAIL: TestConformance/EgressSCTP/deny (8.00s)
    --- SKIP: TestConformance/Names (0.00s)
FAIL
`, `pass: Ingress (8.50s)
fail: EgressSCTP (9.00s)
    failed: EgressSCTP/deny
skip: Names (0.00s)
1 passed, 1 failed, 1 skipped
`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			summary, passed := summarizeGo(c.text)
			if summary != c.want || passed != c.passed {
				t.Errorf("got %d passed and\n%swant %d passed and\n%s", passed, summary, c.passed, c.want)
			}
		})
	}
}
