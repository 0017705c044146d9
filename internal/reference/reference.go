// Package reference writes the pages that are made from the code, as those of flags and commands: "make reference".
package reference

import (
	"os"
	"path/filepath"
	"testing"
)

// Write writes a page into the folder that TWILL_REFERENCE names. Without it the page is only made.
func Write(t testing.TB, name, page string) {
	t.Helper()
	dir := os.Getenv("TWILL_REFERENCE")
	if dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
