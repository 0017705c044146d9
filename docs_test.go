package twill_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*\b`)
	makeRule   = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	makeName   = regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z0-9-]*)")
	link       = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)\s]*)?\)`)
	testLink   = regexp.MustCompile(`\[((?:Test|Fuzz)\w+)\]\(([^)]+)\)`)
	aptPackage = regexp.MustCompile(`missing\+=\(([a-z0-9 -]+)\)`)
)

// TestDocuments: every test, make target and file that a document names exists.
func TestDocuments(t *testing.T) {
	tests := map[string]bool{}
	targets := map[string]bool{}
	pages := map[string]string{}
	for _, path := range sourceFiles(t, ".go", ".md") {
		text := readFile(t, path)
		if strings.HasSuffix(path, ".md") {
			pages[path] = text
		}
		for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	}
	for _, m := range makeRule.FindAllStringSubmatch(readFile(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	if len(tests) < 100 || len(targets) < 10 || len(pages) < 20 {
		t.Fatalf("%d tests, %d targets, %d pages found: there are more", len(tests), len(targets), len(pages))
	}
	for path, text := range pages {
		for _, name := range testName.FindAllString(text, -1) {
			if !tests[name] {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
		for _, m := range makeName.FindAllStringSubmatch(text, -1) {
			if !targets[m[1]] {
				t.Errorf("%s names make %s, which is no target", path, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
		}
	}
}

// TestSecurityPage: each thing that Documentation/security.md says somebody can or cannot do has a link to a
// test, and the file has that test.
func TestSecurityPage(t *testing.T) {
	page := readFile(t, "Documentation/security.md")
	for _, heading := range []string{"node", "pod", "local user without rights", "careless administrator"} {
		if !regexp.MustCompile(`(?m)^## One (compromised )?` + heading + `$`).MatchString(page) {
			t.Errorf("nothing is said of one %s", heading)
		}
	}
	parts := strings.Split(page, "\n- ")[1:]
	if len(parts) < 20 {
		t.Errorf("%d sentences found, there are more: this test does not see them", len(parts))
	}
	for _, part := range parts {
		item, _, _ := strings.Cut(part, "\n\n")
		links := testLink.FindAllStringSubmatch(item, -1)
		if len(links) == 0 {
			t.Errorf("no test shows that: %s", item)
		}
		for _, m := range links {
			if !strings.Contains(readFile(t, filepath.Join("Documentation", m[2])), "func "+m[1]+"(") {
				t.Errorf("%s has no %s", m[2], m[1])
			}
		}
	}
}

// TestLongNames: make test-long runs the tests that only it compiles, by their names.
func TestLongNames(t *testing.T) {
	files, err := filepath.Glob("plugin/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, f := range files {
		text := readFile(t, f)
		if !strings.HasPrefix(text, "//go:build long\n") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
			if count++; !strings.HasPrefix(m[1], "TestLong") {
				t.Errorf("%s: %s is run by nothing: want a name that begins with TestLong", f, m[1])
			}
		}
	}
	if count < 5 {
		t.Errorf("%d long tests found, there are more", count)
	}
}

// TestLedger: every row of the ledger of flaky tests has a cause.
func TestLedger(t *testing.T) {
	for _, row := range regexp.MustCompile(`(?m)^\| [0-9-]+ \|.*\| +\|$`).FindAllString(readFile(t, "Documentation/flaky.md"), -1) {
		t.Errorf("a row has no cause: %s", row)
	}
}

// TestReadmeNamesPackages: README says what make test may install.
func TestReadmeNamesPackages(t *testing.T) {
	readme := strings.Join(strings.Fields(readFile(t, "README.md")), " ") // the list may wrap anywhere
	_, list, _ := strings.Cut(readme, "Debian packages if they are missing: ")
	list, _, ok := strings.Cut(list, ";")
	found := aptPackage.FindAllStringSubmatch(readFile(t, ".ci/setup"), -1)
	if !ok || len(found) < 5 {
		t.Fatalf("README's list of packages: found is %v; .ci/setup installs %d", ok, len(found))
	}
	for _, m := range found {
		for _, name := range strings.Fields(m[1]) {
			if !regexp.MustCompile(`(^|\s)` + name + `([,\s]|$)`).MatchString(list) {
				t.Errorf(".ci/setup installs %s, and README does not say so", name)
			}
		}
	}
}

// sourceFiles are the files of this module with one of the endings, without what was built.
func sourceFiles(t *testing.T, endings ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == "bin" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return fs.SkipDir
		}
		for _, e := range endings {
			if strings.HasSuffix(path, e) {
				files = append(files, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
