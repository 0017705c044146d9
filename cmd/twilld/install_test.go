package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestInstallPlugins(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "twill"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(to, "twill")
	if err := os.WriteFile(old, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	running, err := os.Open(old)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	if err := installPlugins(from, to, io.Discard); err != nil {
		t.Fatal(err)
	}
	if data, _ := io.ReadAll(running); string(data) != "old" {
		t.Errorf("a program that runs was overwritten with %q", data)
	}
	data, err := os.ReadFile(old)
	info, statErr := os.Stat(old)
	if err != nil || statErr != nil || string(data) != "new" || info.Mode().Perm() != 0o755 {
		t.Errorf("got %q with mode %v, %v %v", data, info.Mode(), err, statErr)
	}
	if list, _ := os.ReadDir(to); len(list) != 1 {
		t.Errorf("leftovers: %v", list)
	}
	if err := installPlugins(filepath.Join(from, "none"), to, io.Discard); err == nil {
		t.Error("no plugins, and no error")
	}
}
