package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestConflist(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(name string) bool { _, err := os.Stat(path(name)); return err == nil }
	c := Conflist{Source: path("source"), Target: path("10-twill.conflist")}

	put("source", "{")
	if err := c.write(); err == nil || exists("10-twill.conflist") {
		t.Errorf("a source that is not JSON: %v", err)
	}
	put("source", `{"plugins":[{"type":"twill"}]}`)
	put(flannelConflist, `{"plugins":[{"type":"bridge"}]}`)
	for range 2 {
		if err := c.write(); err != nil {
			t.Fatal(err)
		}
	}
	if !exists(flannelConflist) {
		t.Error("a conflist that is not flannel's was taken away")
	}
	before, _ := os.Stat(c.Target)
	put(flannelConflist, `{"plugins":[{"type":"flannel"},{"type":"portmap"}]}`)
	if err := c.write(); err != nil {
		t.Fatal(err)
	}
	if exists(flannelConflist) || !exists(flannelConflist+replaced) {
		t.Error("flannel's conflist is still in the way")
	}
	if after, _ := os.Stat(c.Target); !os.SameFile(before, after) {
		t.Error("an unchanged file was written again")
	}
	if err := os.Remove(c.Target); err != nil {
		t.Fatal(err)
	}
	if err := c.write(); err != nil || !exists("10-twill.conflist") {
		t.Errorf("a removed conflist does not come back: %v", err)
	}
	if list, _ := filepath.Glob(path(".twill-*")); len(list) > 0 {
		t.Errorf("leftovers: %v", list)
	}
}
