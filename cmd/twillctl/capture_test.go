package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCaptureRefused: what cannot be captured is said, and leaves no file.
func TestCaptureRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcapng")
	for args, want := range map[string]string{
		"capture node1 10.244.0.2":                  `source "node1": want an address`,
		"capture 10.244.0.2 10.244.1":               `destination "10.244.1": want an address`,
		"capture --for -1s 10.244.0.2 10.244.1.2":   "--for -1s: want more than nothing",
		"capture --lab nowhere node1/pod1 node2/p1": "there is no such lab",
	} {
		if _, err := run(t, append(strings.Fields(args), "--output", path)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: there is a file (%v)", args, err)
		}
	}
}
