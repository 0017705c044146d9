package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWrite: the file is replaced as a whole, with its mode; what cannot be written leaves nothing.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"old", "new"} {
		if err := Write(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		info, err2 := os.Stat(path)
		if errors.Join(err, err2) != nil || string(data) != text || info.Mode() != 0o755 {
			t.Errorf("the file holds %q with the mode %s, want %q: %v", data, info.Mode(), text, errors.Join(err, err2))
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "full", "of"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "full"), nil, 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if list, err := os.ReadDir(dir); len(list) != 2 || err != nil {
		t.Errorf("left are %v, %v", list, err)
	}
}

// TestSweep: one that went meanwhile is no error, and what is not a file of its own is not touched.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	if err := sweep(filepath.Join(dir, "none")); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	if _, err := create(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a draft in a directory that is gone: %v", err)
	}
	if err := Sweep(filepath.Join(dir, "none")); err != nil {
		t.Errorf("the directory is gone: %v", err)
	}
	put(t, filepath.Join(dir, "other"), "other")
	link, old := filepath.Join(dir, ".twill-1"), time.Now().Add(-time.Hour)
	if err := errors.Join(os.Symlink("other", link), os.Chtimes(filepath.Join(dir, "other"), old, old)); err != nil {
		t.Fatal(err)
	}
	if err := sweep(link); err == nil {
		t.Error("a link was followed")
	}
	for age, goes := range map[time.Duration]bool{9 * time.Minute: false, 11 * time.Minute: true} {
		path := filepath.Join(dir, ".twill-2")
		put(t, path, "draft")
		then := time.Now().Add(-age)
		if err := errors.Join(os.Chtimes(path, then, then), sweep(path)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); (err != nil) != goes {
			t.Errorf("a draft of %s: %v, want that it goes: %t", age, err, goes)
		}
	}
}
