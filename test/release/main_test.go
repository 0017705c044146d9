//go:build release

package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const version = "v0.2.0-test.1"

var (
	// work is a directory for all tests.
	work string
	// dir has the files of the release.
	dir string
	// commit is what it was made from.
	commit string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if work, err = os.MkdirTemp("", "twill-release-test-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(work)
	key := filepath.Join(work, "key.pem")
	if err := command("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key).Run(); err != nil {
		return 1, fmt.Errorf("make a key: %w", err)
	}
	source := filepath.Join(work, "source")
	if commit, err = checkOut(source); err != nil {
		return 1, err
	}
	dir = filepath.Join(work, "files")
	if out, err := build(source, version, dir, "SIGN_KEY="+key); err != nil {
		return 1, fmt.Errorf("make a release: %w\n%s", err, out)
	}
	return m.Run(), nil
}

func command(name string, args ...string) *exec.Cmd { return exec.Command(name, args...) }

// checkOut commits a copy of the working tree and returns the commit, which is the same for the same files.
func checkOut(to string) (string, error) {
	c := command("bash", "-euo", "pipefail", "-c", `
		mkdir -p "$1"
		git -C ../.. ls-files -z --cached --others --exclude-standard | tar -C ../.. --null --ignore-failed-read -T - -c | tar -C "$1" -x
		cd "$1"
		git init -q
		git add -A
		GIT_COMMITTER_DATE=2026-01-01T00:00:00Z git -c user.name=test -c user.email=test@example.com commit -q --date 2026-01-01T00:00:00Z -m test
		git rev-parse HEAD`, "sh", to)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("copy the source: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build makes a release of a source for this machine's architecture.
func build(source, version, to string, env ...string) (string, error) {
	c := command(filepath.Join(source, "tools", "release", "build"), version, to)
	c.Env = append(append(os.Environ(), "ARCHITECTURES="+runtime.GOARCH), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// output runs a command and returns what it wrote on standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := command(name, args...)
	var complaint strings.Builder
	c.Stderr = &complaint
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, complaint.String())
	}
	return string(out)
}

// file is a file of the release.
func file(name string) string { return filepath.Join(dir, name) }
