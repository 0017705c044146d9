package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pass = "func TestPass(t *testing.T) {}\n"

// TestRun runs real modules, each of one file a package, as make test runs this one.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		name   string
		files  map[string]string
		args   []string
		strict bool
		code   int
		want   []string // the output has each of these
		last   string
	}{
		{name: "all pass", strict: true, last: "2 passed, 0 failed, 0 skipped", files: map[string]string{
			"a": "import \"testing\"\n" + pass, "b": "import \"testing\"\n" + pass}},
		{name: "subtests are counted, parents are not", strict: true, last: "2 passed, 0 failed, 1 skipped",
			files: map[string]string{"a": "import \"testing\"\nfunc TestPass(t *testing.T) { t.Run(\"a\", func(*testing.T) {}); " +
				"t.Run(\"b\", func(*testing.T) {}); t.Run(\"c\", func(t *testing.T) { t.Skip(\"not here\") }) }\n"},
			want: []string{"--- m/a TestPass/c", "not here"}},
		{name: "a TestMain that runs nothing", last: "1 passed, 0 failed, 0 skipped, 1 packages ran no tests",
			files: idle, want: []string{"none ", "--- m/a ran no tests:\nneeds root"}},
		{name: "a TestMain that runs nothing, in CI", strict: true, code: 1, files: idle,
			last: "1 passed, 0 failed, 0 skipped, 1 packages ran no tests"},
		{name: "a test that does not compile", code: 1, last: "0 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import \"testing\"\nfunc TestPass(t *testing.T) { undefinedName() }\n"},
			want:  []string{"--- m/a", "undefined: undefinedName", "[build failed]"}},
		{name: "a failure", code: 1, last: "1 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import \"testing\"\n" + pass + "func TestFail(t *testing.T) { t.Error(\"wrong value\") }\n"},
			want:  []string{"again: m/a", "--- m/a TestFail", "wrong value"}},
		{name: "a failure that goes away", last: "2 passed, 0 failed, 0 skipped, 1 packages passed only when run again",
			files: map[string]string{"a": "import (\n\"os\"\n\"testing\"\n)\n" + pass + `func TestFlaky(t *testing.T) {
				if _, err := os.Stat("ran"); err == nil { return }
				os.WriteFile("ran", nil, 0o600)
				t.Error("too slow") }` + "\n"},
			want: []string{"--- m/a failed and passed when it was run again:\n", "too slow",
				"\nFLAKY: m/a failed and passed when it was run again: TestFlaky\n2 passed"}},
		{name: "a failure, once and aloud", args: []string{"-once", "-v"}, code: 1, last: "0 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import \"testing\"\nfunc TestFail(t *testing.T) { t.Error(\"wrong value\") }\n"},
			want:  []string{"wrong value\n--- FAIL: TestFail", "fail "}},
		{name: "a death without a failing test", code: 1, last: "0 passed, 1 failed, 0 skipped",
			files: map[string]string{"a": "import (\n\"os\"\n\"testing\"\n)\nfunc TestMain(*testing.M) { println(\"no namespaces\"); os.Exit(3) }\n" + pass},
			want:  []string{"--- m/a ", "no namespaces"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module m\n\ngo 1.24\n")
			for pkg, text := range c.files {
				write(t, filepath.Join(dir, pkg, pkg+"_test.go"), "package "+pkg+"\n\n"+text)
			}
			t.Chdir(dir)
			var out strings.Builder
			if code := run(&out, append(c.args, "-count=1", "./..."), c.strict); code != c.code {
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
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

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
