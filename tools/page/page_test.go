package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sources, committed = "../../ui/page", "../../ui/dist"

// TestBundle: what is committed, and embedded in twillctl, is what the sources give.
func TestBundle(t *testing.T) {
	files, err := bundle(sources)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := differences(committed, files)
	if err != nil {
		t.Fatal(err)
	}
	if len(changed) > 0 {
		t.Errorf("ui/dist is not what ui/page gives, it differs in %v: run make page, and commit both", changed)
	}
	size, err := compressed(files)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes compressed, of %d", size, limit)
}

// TestAnotherFolder: the bundle does not depend on where its sources are.
func TestAnotherFolder(t *testing.T) {
	copied := filepath.Join(t.TempDir(), "sources")
	if err := os.CopyFS(copied, os.DirFS(sources)); err != nil {
		t.Fatal(err)
	}
	files, err := bundle(copied)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := differences(committed, files); err != nil || len(changed) > 0 {
		t.Errorf("a copy of ui/page gives another bundle than ui/dist: %v, %v", changed, err)
	}
}

func newSources(t *testing.T, script string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range map[string]string{"index.html": "<title>A</title>\n", "page.css": "p { color: #ff0000 }\n", "main.ts": script} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"syntax":       {"const = 1;", `Expected identifier`},
		"no such file": {`import "./nowhere";`, `Could not resolve "./nowhere"`},
		"a package":    {`import "leftpad";`, `Could not resolve "leftpad"`},
		"a warning":    {"if (typeof document === 'nothing') document.title = 'never';", `typeof`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := bundle(newSources(t, c.script)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestWrite: differences are seen and mended, but for a file that no source gives.
func TestWrite(t *testing.T) {
	from, out := newSources(t, "document.title = 'A';"), filepath.Join(t.TempDir(), "dist")
	if err := run(from, out); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "old.js"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "page.js"), []byte("alert()"), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := bundle(from)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := differences(out, files); err != nil || strings.Join(changed, " ") != "old.js page.js" {
		t.Errorf("differences: %v, %v", changed, err)
	}
	if err := run(from, out); err == nil || !strings.Contains(err.Error(), "old.js is no part of the bundle") {
		t.Errorf("%v, want that old.js is no part of the bundle", err)
	}
	if err := os.Remove(filepath.Join(out, "old.js")); err != nil {
		t.Fatal(err)
	}
	if err := run(from, out); err != nil {
		t.Fatal(err)
	}
	if changed, err := differences(out, files); err != nil || len(changed) > 0 {
		t.Errorf("differences of what was written: %v, %v", changed, err)
	}
}

func TestTooLarge(t *testing.T) {
	var script strings.Builder
	script.WriteString("document.title = '")
	for i := uint32(1); script.Len() < 2*limit; i = i*1664525 + 1013904223 {
		script.WriteByte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[i>>26])
	}
	script.WriteString("';")
	if err := run(newSources(t, script.String()), t.TempDir()); err == nil || !strings.Contains(err.Error(), "may have 300000") {
		t.Errorf("%v, want that the bundle is too large", err)
	}
}
