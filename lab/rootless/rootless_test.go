package rootless

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDirectory: labs are kept only where nobody else may write.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	at := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(at("own", 0o700), link); err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string]string{
		filepath.Join(dir, "own"):          "",
		filepath.Join(dir, "new"):          "",
		at("open", 0o777):                  "want a directory of your own to which nobody else may write: its mode is drwxrwxrwx",
		link:                               "want a directory of your own",
		"run/user/1":                       "XDG_RUNTIME_DIR run/user/1: want an absolute path of at most 94 characters",
		"/run/" + strings.Repeat("a", 100): "want an absolute path of at most 94 characters",
		filepath.Join(dir, "no", "such"):   "make the directory of labs",
	} {
		err := places(base).check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", base, err, want)
		}
	}
}
