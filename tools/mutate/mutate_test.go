package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const source = `package m

import "fmt"

type T struct{ A, B int }

func Max(a, b int, log func(string)) int {
	log("asked")
	if a >= b {
		return a
	}
	return b
}

func Make() T {
	t := T{A: 1, B: 2}
	t.A++
	return t
}

// The capacities and texts here are no mutants.
func Fail(log func(string, int)) (map[int]int, error) {
	log("failed", 4)
	return make(map[int]int, 6), fmt.Errorf("after %d", 5)
}
`

// The tests see everything but B, and that equal values are equal.
const tests = `package m

import "testing"

func TestMax(t *testing.T) {
	if say := func(string) {}; Max(1, 2, say) != 2 || Max(2, 1, say) != 2 || Make().A != 2 {
		t.Error("wrong")
	}
}
`

func inModule(t *testing.T, tests string) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.24\n", "m.go": source, "m_test.go": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

func TestMutate(t *testing.T) {
	inModule(t, tests)
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	var out strings.Builder
	score, err := options{out: &out, lists: lists, n: 100, timeout: time.Minute}.run([]string{"."})
	if err != nil {
		t.Fatal(err)
	}
	var alive, dead []string
	for line := range strings.Lines(out.String()) {
		if what, ok := strings.CutPrefix(strings.TrimSpace(line), "SURVIVED "); ok {
			alive = append(alive, what)
		} else if what, ok := strings.CutPrefix(strings.TrimSpace(line), "killed "); ok {
			dead = append(dead, strings.TrimSpace(what))
		}
	}
	slices.Sort(alive)
	slices.Sort(dead)
	if want := []string{"m.go:16: 9 in place of 2", "m.go:16: without B: 2", "m.go:9: > in place of >="}; !slices.Equal(alive, want) {
		t.Errorf("survivors\n%q, want\n%q", alive, want)
	}
	if want := []string{"m.go:16: 5 in place of 1", "m.go:16: without A: 1,", "m.go:17: without t.A++", "m.go:9: !(a >= b) in place of a >= b",
		"m.go:9: false && (a >= b) in place of a >= b"}; !slices.Equal(dead, want) {
		t.Errorf("killed\n%q, want\n%q", dead, want)
	}
	if want := 100 * 5. / 8; score != want {
		t.Errorf("score %v, want %v", score, want)
	}
	if text, err := os.ReadFile("m.go"); err != nil || string(text) != source {
		t.Errorf("the source was changed, error: %v", err)
	}
}

// TestSample: the seed decides, and -at chooses lines.
func TestSample(t *testing.T) {
	inModule(t, tests)
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	var first, again, line strings.Builder
	for _, o := range []options{
		{out: &first, lists: lists, n: 2, seed: 7, timeout: time.Minute},
		{out: &again, lists: lists, n: 2, seed: 7, timeout: time.Minute},
		{out: &line, lists: lists, n: 2, at: `m\.go:9:`, timeout: time.Minute},
	} {
		if _, err := o.run([]string{"."}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != again.String() || !strings.Contains(first.String(), " of 2 killed") {
		t.Errorf("two runs with one seed:\n%s\n%s", &first, &again)
	}
	if n := strings.Count(line.String(), "m.go:9:"); n != 3 || !strings.Contains(line.String(), "2 of 3 killed") {
		t.Errorf("of line 9 there are 3 mutants:\n%s", &line)
	}
}

// TestFailingTests: tests that fail anyway kill nothing.
func TestFailingTests(t *testing.T) {
	inModule(t, strings.ReplaceAll(tests, "!= 2 ||", "!= 3 ||"))
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	_, err := options{out: &strings.Builder{}, lists: lists, n: 1, timeout: time.Minute}.run([]string{"."})
	if err == nil || !strings.Contains(err.Error(), "fail without a mutant") {
		t.Errorf("error %v, want that the tests fail without a mutant", err)
	}
}

// TestRun: only tests that are chosen can kill, and at least one has to be.
func TestRun(t *testing.T) {
	inModule(t, tests+"\nfunc TestNothing(*testing.T) {}\n")
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	for run, want := range map[string]float64{".:TestMax": 100, ".:TestNothing": 0} {
		score, err := options{out: &strings.Builder{}, lists: lists, n: 1, at: `without A`, timeout: time.Minute}.run([]string{run})
		if err != nil || score != want {
			t.Errorf("%s kills %v %%, %v; want %v %%", run, score, err, want)
		}
	}
	_, err := options{out: &strings.Builder{}, lists: lists, n: 1, timeout: time.Minute}.run([]string{".:TestMin"})
	if err == nil || !strings.Contains(err.Error(), "chooses no test") {
		t.Errorf("error %v, want that no test is chosen", err)
	}
}
