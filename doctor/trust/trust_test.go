package trust_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/trust"
)

func TestFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: files of other users")
	}
	for name, c := range map[string]struct {
		spoil func(dir, file string) error
		want  string
	}{
		"own":                 {func(string, string) error { return nil }, ""},
		"of another user":     {func(_, file string) error { return os.Chown(file, 65534, 0) }, "config belongs to the user 65534"},
		"written by a group":  {func(_, file string) error { return os.Chmod(file, 0o664) }, "config may be written by others"},
		"directory of others": {func(dir, _ string) error { return os.Chown(dir, 65534, 0) }, "belongs to the user 65534"},
		"open directory":      {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "may be written by others"},
		"sticky directory":    {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, ""},
		"link into another's directory": {func(dir, file string) error {
			other := filepath.Join(dir, "other")
			if err := os.Mkdir(other, 0o755); err != nil {
				return err
			}
			if err := os.Rename(file, filepath.Join(other, "config")); err != nil {
				return err
			}
			if err := os.Chown(other, 65534, 0); err != nil {
				return err
			}
			return os.Symlink("other/config", file)
		}, "other belongs to the user 65534"},
		"loop": {func(_, file string) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Symlink("config", file)
		}, "too many symbolic links"},
		"absent": {func(_, file string) error { return os.Remove(file) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "dir")
			file := filepath.Join(dir, "config")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(dir, file); err != nil {
				t.Fatal(err)
			}
			err := trust.File(file)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
