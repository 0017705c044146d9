package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const pass = "func TestPass(t *testing.T) {}\n"

// TestRun runs real modules, each of one file a package, as make test runs this one.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		args  []string
		ci    bool
		code  int
		known string   // rows of the ledger before
		rows  string   // and of this run, without the date
		want  []string // the output has each of these
		last  string
	}{
		{name: "all pass", ci: true, last: "2 passed, 0 failed, 0 skipped", want: []string{"(1 of 2)", "(2 of 2)"}, files: map[string]string{
			"a": "import \"testing\"\n" + pass, "b": "import \"testing\"\n" + pass}},
		{name: "subtests are counted, parents are not", ci: true, last: "2 passed, 0 failed, 1 skipped",
			files: map[string]string{"a": "import \"testing\"\nfunc TestPass(t *testing.T) { t.Run(\"a\", func(*testing.T) {}); " +
				"t.Run(\"b\", func(*testing.T) {}); t.Run(\"c\", func(t *testing.T) { t.Skip(\"not here\") }) }\n"},
			want: []string{"--- m/a TestPass/c", "not here"}},
		{name: "a TestMain that runs nothing", last: "1 passed, 0 failed, 0 skipped, 1 packages ran no tests",
			files: idle, want: []string{"none ", "--- m/a ran no tests:\nneeds root"}},
		{name: "a TestMain that runs nothing, in CI", ci: true, code: 1, files: idle,
			last: "1 passed, 0 failed, 0 skipped, 1 packages ran no tests"},
		{name: "a test that does not compile", code: 1, last: "0 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import \"testing\"\nfunc TestPass(t *testing.T) { undefinedName() }\n"},
			want:  []string{"--- m/a", "undefined: undefinedName", "[build failed]"}},
		{name: "a failure", args: ledger, ci: true, code: 1, last: "1 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import \"testing\"\n" + pass + "func TestFail(t *testing.T) { t.Error(\"wrong value\") }\n"},
			want:  []string{"again: m/a TestFail\n", "--- m/a TestFail", "wrong value"}},
		{name: "a failure that goes away, in CI", args: ledger, ci: true, last: "3 passed, 0 failed, 0 skipped, 1 tests passed only when run again",
			files: flaky, rows: "| m/a | TestFlaky | |\n",
			want: []string{"--- m/a TestFlaky failed, and passed when it was run again alone:\n", "too slow",
				"\nFLAKY: m/a TestFlaky failed, and passed when it was run again alone: write the cause into the ledger\n3 passed"}},
		{name: "a failure that goes away", args: ledger, code: 1, last: "2 passed, 1 failed, 0 skipped, 1 tests passed only when run again",
			files: flaky, rows: "| m/a | TestFlaky | |\n"},
		{name: "a failure that goes away for the second time", args: ledger, ci: true, code: 1,
			last:  "3 passed, 0 failed, 0 skipped, 1 tests passed only when run again",
			known: "| 2026-01-01 | m/a | TestFlaky | slow disk |\n", files: flaky, rows: "| m/a | TestFlaky | |\n",
			want: []string{"\nFLAKY: m/a TestFlaky stands in the ledger twice: fix it before anything else\n3 passed"}},
		{name: "a failure that goes away again after it was fixed", args: ledger, ci: true,
			last:  "3 passed, 0 failed, 0 skipped, 1 tests passed only when run again",
			known: "| 2026-01-01 | m/a | TestFlaky | fixed: waits for the disk |\n", files: flaky, rows: "| m/a | TestFlaky | |\n"},
		{name: "twice in the ledger, and not now", args: ledger, ci: true, code: 1, last: "1 passed, 0 failed, 0 skipped",
			known: strings.Repeat("| 2026-01-01 | m/a | TestPass | slow disk |\n", 2), files: map[string]string{"a": "import \"testing\"\n" + pass},
			want: []string{"\nFLAKY: m/a TestPass stands in the ledger twice: fix it before anything else\n1 passed"}},
		{name: "a program that dies in a test", args: ledger, ci: true, code: 1, last: "0 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import (\n\"os\"\n\"testing\"\n)\n" + "func TestDies(*testing.T) {" + unlessRan + "panic(1) }\n" + pass}},
		{name: "a failure without a ledger, aloud", args: []string{"-v"}, code: 1, last: "2 passed, 1 failed, 0 skipped",
			files: flaky, want: []string{"too slow\n--- FAIL: TestFlaky", "fail "}},
		{name: "a death without a failing test", code: 1, last: "0 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import (\n\"os\"\n\"testing\"\n)\nfunc TestMain(*testing.M) { println(\"no namespaces\"); os.Exit(3) }\n" + pass},
			want:  []string{"--- m/a ", "no namespaces"}},
		{name: "tests that are left out", args: []string{"-left=left", "-short"}, ci: true, last: "2 passed, 0 failed, 1 skipped", files: long,
			want: []string{"\n3 tests are left to make test-all: 2 need a compiler, 1 need a kernel\n2 passed"}},
		{name: "only what was left out", args: []string{"-only=../before"}, ci: true, last: "3 passed, 0 failed, 0 skipped", files: long},
		{name: "what was left out is gone", args: []string{"-only=../before"}, ci: true, code: 1, last: "0 passed, 3 failed, 0 skipped, 2 packages ran no tests",
			files: map[string]string{"a": "import \"testing\"\n" + pass, "b": "import \"testing\"\n" + pass},
			want:  []string{"--- m/a TestRows/long|er\nit was left out by make test, and did not run here\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module m\n\ngo 1.24\n")
			for pkg, text := range c.files {
				write(t, filepath.Join(dir, pkg, pkg+"_test.go"), "package "+pkg+"\n\n"+text)
			}
			t.Chdir(dir)
			write(t, "flaky.md", c.known)
			write(t, "../before", leftOut)
			var out strings.Builder
			if code := run(&out, append(slices.Clone(c.args), "-count=1", "./..."), c.ci); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output has no %q", want)
				}
			}
			if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); lines[len(lines)-1] != c.last {
				t.Errorf("the last line is %q, want %q", lines[len(lines)-1], c.last)
			}
			if slices.Contains(c.args, "-left=left") {
				if data, err := os.ReadFile("left"); err != nil || string(data) != leftOut {
					t.Errorf("left out is %q, %v, want %q", data, err, leftOut)
				}
			}
			data, err := os.ReadFile("flaky.md")
			rows := regexp.MustCompile(`\| \d{4}-\d\d-\d\d `).ReplaceAllString(strings.TrimPrefix(string(data), c.known), "")
			if err != nil || rows != c.rows {
				t.Errorf("the ledger has the new rows %q, %v, want %q", rows, err, c.rows)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

var ledger = []string{"-ledger=flaky.md"}

// unlessRan returns from a test that has run before.
const unlessRan = `
	if _, err := os.Stat("ran"); err == nil { return }
	os.WriteFile("ran", nil, 0o600)
	`

// flaky is a module with a test that fails the first time it runs, and with one that must not run again.
var flaky = map[string]string{
	"a": "import (\n\"os\"\n\"testing\"\n)\n" + `func TestOnce(t *testing.T) {
	if _, err := os.Stat("once"); err == nil { t.Error("it ran again") }
	os.WriteFile("once", nil, 0o600) }
func TestFlaky(t *testing.T) {` + unlessRan + "t.Error(\"too slow\") }\n",
	"b": "import \"testing\"\n" + pass,
}

// long is a module with tests that are left out under -short, one of them among rows that are not.
var long = map[string]string{
	"a": "import \"testing\"\n" + `func TestRows(t *testing.T) {
	t.Run("short", func(t *testing.T) { if !testing.Short() { t.Error("it ran again") } })
	t.Run("long|er", func(t *testing.T) { need(t, "a compiler") })
	t.Run("elsewhere", func(t *testing.T) { t.Skip("not here") }) }
func TestAll(t *testing.T) { need(t, "a compiler"); t.Run("sub", func(*testing.T) {}) }
func need(t *testing.T, what string) { if testing.Short() { t.Skip("left to make test-all: it needs " + what) } }
`,
	"b": "import \"testing\"\n" + pass + "func TestKernel(t *testing.T) { if testing.Short() { t.Skip(\"left to make test-all: it needs a kernel\") } }\n",
}

const leftOut = "m/a\tTestAll\nm/a\tTestRows/long|er\nm/b\tTestKernel\n"

// idle is a module of which one package leaves its tests out without a word to go test.
var idle = map[string]string{
	"a": "import (\n\"fmt\"\n\"testing\"\n)\nfunc TestMain(*testing.M) { fmt.Println(\"needs root\") }\n" + pass,
	"b": "import \"testing\"\n" + pass,
}

// TestBrokenDependency: what the compiler says of a package is shown once, and under one that needs it.
func TestBrokenDependency(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module m\n\ngo 1.24\n")
	write(t, filepath.Join(dir, "broken", "b.go"), "package broken\n\nvar V = 1 + \"x\"\n")
	for _, user := range []string{"a", "c"} {
		write(t, filepath.Join(dir, user, "u_test.go"), "package "+user+"\n\nimport (\n\"testing\"\n_ \"m/broken\"\n)\n"+pass)
	}
	t.Chdir(dir)
	var out strings.Builder
	if code := run(&out, []string{"./..."}, false); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if n := strings.Count(out.String(), "mismatched types"); n != 1 {
		t.Errorf("the compiler's message is shown %d times, want once", n)
	}
	if !strings.HasSuffix(out.String(), "\n0 passed, 3 failed, 0 skipped\n") {
		t.Error("the last line is not that three packages failed")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
