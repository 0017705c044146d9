package main

import (
	"strings"
	"testing"
)

// TestCyclonusSummary: what failed is named, with the steps in which it did, and makes the run fail.
func TestCyclonusSummary(t *testing.T) {
	for _, c := range []struct{ name, report, want, err string }{
		{"no case", "", "0 passed (0 of them in a second try), 0 failed; 0 pairs of pods were judged in 0s\n", "no case ran"},
		{"all pass", `{"Name":"001 x","Passed":true,"Seconds":1.5,"Steps":[{"Tries":1,"Correct":72}]}
{"Name":"002 y","Passed":true,"Seconds":2,"Steps":[{"Tries":1,"Correct":72},{"Tries":2,"Correct":72}]}
`, `failed once, then passed: 002 y
2 passed (1 of them in a second try), 0 failed; 216 pairs of pods were judged in 3s
`, ""},
		{"some fail", `{"Name":"001 x","Steps":[{"Tries":1,"Correct":72},{"Tries":2,"Wrong":3,"Correct":69}]}
{"Name":"002 y","Error":"no such pod\nstack"}
{"Name":"003 z","Passed":true,"Steps":[{"Tries":1,"Correct":72}]}
`, `failed: 001 x
    step 2: 3 of 72 pairs of pods are wrong
failed: 002 y
    no such pod
1 passed (0 of them in a second try), 2 failed; 216 pairs of pods were judged in 0s
`, "2 cases failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := readCyclonus(strings.NewReader(c.report))
			if err != nil {
				t.Fatal(err)
			}
			if s.String() != c.want {
				t.Errorf("got\n%swant\n%s", s, c.want)
			}
			got := ""
			if err := s.err(); err != nil {
				got = err.Error()
			}
			if got != c.err {
				t.Errorf("got the error %q, want %q", got, c.err)
			}
		})
	}
}
