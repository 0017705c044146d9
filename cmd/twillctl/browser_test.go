package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// desktop is an xdg-open that starts a browser, which reads what it is to open.
const desktop = `#!/bin/sh
sh -c 'test -f "$0" && cat "$0" >page.new || echo "$0" >page.new; mv page.new page; sleep 1000' "$1" &
echo $! >browser
wait
`

// TestNoTokenInArguments looks at the command line of every process while a user's browser shows the page: none has the
// token, without which the server says nothing. The file that has it is that user's alone, and goes with the program.
func TestNoTokenInArguments(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	program, _ := build(t)
	dir, home := open(t, t.TempDir()), open(t, t.TempDir())
	for _, err := range []error{os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(desktop), 0o755),
		os.Chown(home, 65534, 65534), os.Chmod(filepath.Dir(program), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("setpriv", "--reuid=65534", "--clear-groups", program, "ui")
	c.Env, c.Dir = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + home, "DISPLAY=:0"}, home
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaint bytes.Buffer
	c.Stderr = &complaint
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	token := ""
	for s := bufio.NewScanner(out); token == "" && s.Scan(); {
		_, token, _ = strings.Cut(s.Text(), "/#")
	}
	if token == "" {
		t.Fatalf("it prints no address: %v\n%s", c.Wait(), &complaint)
	}
	testwait.Until(t, "the browser leads to the page", func() bool {
		page, err := os.ReadFile(filepath.Join(home, "page"))
		return err == nil && strings.Contains(string(page), "/#"+token)
	})
	for _, path := range glob(t, "/proc/[0-9]*/cmdline") {
		if line, _ := os.ReadFile(path); bytes.Contains(line, []byte(token)) {
			t.Errorf("%s has the token: %q", path, line)
		}
	}
	for _, path := range glob(t, filepath.Join(home, "twill-ui-*"), filepath.Join(home, "twill-ui-*", "*")) {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v; want it to be its owner's alone", path, info.Mode(), err)
		}
	}
	_ = c.Process.Signal(syscall.SIGINT)
	if err := c.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, &complaint)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "twill-ui-*")); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// glob returns the paths that match, at least one for each pattern.
func glob(t *testing.T, patterns ...string) (all []string) {
	t.Helper()
	for _, p := range patterns {
		paths, err := filepath.Glob(p)
		if err != nil || len(paths) == 0 {
			t.Fatal(fmt.Errorf("%s: %d paths, %w", p, len(paths), err))
		}
		all = append(all, paths...)
	}
	return all
}
