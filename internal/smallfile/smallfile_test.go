package smallfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRead: what is no small regular file is an error that says what it is, at once and without memory.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(at("file"), []byte("12345678"), 0o600))
	must(os.WriteFile(at("longer"), []byte("123456789"), 0o600))
	must(os.WriteFile(at("empty"), nil, 0o600))
	must(os.WriteFile(at("sparse"), nil, 0o600))
	must(os.Truncate(at("sparse"), 1<<40))
	must(os.Symlink("file", at("link")))
	must(os.Symlink("/dev/zero", at("zero")))
	must(syscall.Mkfifo(at("pipe"), 0o600))
	for path, want := range map[string]struct{ content, followed, unlinked string }{
		at("file"):   {"12345678", "", ""},
		at("empty"):  {"", "", ""},
		at("link"):   {"12345678", "", "it is a link"},
		at("longer"): {"", "it has 9 bytes: want at most 8", "it has 9 bytes: want at most 8"},
		at("sparse"): {"", "it has 1099511627776 bytes: want at most 8", "it has 1099511627776 bytes"},
		at("zero"):   {"", "it is a device", "it is a link"},
		"/dev/zero":  {"", "it is a device", "it is a device"},
		at("pipe"):   {"", "it is a named pipe: want a regular file", "it is a named pipe"},
		dir:          {"", "it is a directory", "it is a directory"},
		// The kernel's files say that they are empty.
		"/proc/sys/net/core/somaxconn": {"4096\n", "", ""},
		"/proc/cpuinfo":                {"", "it has more than 8 bytes", "it has more than 8 bytes"},
	} {
		for name, read := range map[string]func(string, int64) ([]byte, error){"Read": Read, "ReadUnlinked": ReadUnlinked} {
			data, err := read(path, 8)
			complaint := want.followed
			if name == "ReadUnlinked" {
				complaint = want.unlinked
			}
			if complaint != "" {
				if err == nil || !strings.Contains(err.Error(), path+": "+complaint) {
					t.Errorf("%s(%s): %v, want %q", name, path, err, complaint)
				}
			} else if err != nil || string(data) != want.content {
				t.Errorf("%s(%s) = %q, %v, want %q", name, path, data, err, want.content)
			}
		}
	}
	if _, err := Read(at("none"), 8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	long := bytes.Repeat([]byte("0123456789"), 10000)
	must(os.WriteFile(at("long"), long, 0o600))
	if data, err := Read(at("long"), MB); err != nil || !bytes.Equal(data, long) {
		t.Errorf("a long file: %d bytes, %v", len(data), err)
	}
	if data, err := Read("/proc/kallsyms", 64*MB); err != nil || len(data) < 100000 {
		t.Errorf("a long file of the kernel's: %d bytes, %v", len(data), err)
	}
}
