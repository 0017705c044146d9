package filewatch

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
)

const everything = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE

// TestNames: what happens to other files of the directory is no news, and all of it is where no names are given.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	shell := func(line string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", line)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	const others = "echo x >agent.log; echo x >>agent.log; chmod 600 agent.log; mv agent.log b; cat kept; rm b"
	shell("echo x >kept")
	for name, c := range map[string]struct {
		names []string
		line  string
		news  bool
	}{
		"others":        {[]string{"kept"}, others, false},
		"the file":      {[]string{"kept"}, others + "; chmod 600 kept", true},
		"without names": {nil, others, true},
	} {
		t.Run(name, func(t *testing.T) {
			events := make(chan struct{}, 1)
			w, err := Open(events)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := w.Follow(Paths{dir: everything}, c.names...); err != nil {
				t.Fatal(err)
			}
			shell(c.line)
			raw, err := w.inotify.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			testwait.Until(t, "all events are read", func() bool {
				unread := 0
				err := raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
				return err != nil || unread == 0
			})
			w.Close() // which waits until they are judged too
			if news := len(events) > 0; news != c.news {
				t.Errorf("it told of something: %t, want %t", news, c.news)
			}
			if err := w.Err(); err != nil {
				t.Errorf("a closed watch: %v", err)
			}
		})
	}
}

// TestFollow: what is missing is no error, and what is no longer wanted is not told of.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(a)
	for name, c := range map[string]struct {
		then Paths
		news bool
	}{
		"followed":           {Paths{a: everything, b: everything, filepath.Join(a, "c"): everything}, true},
		"no longer followed": {Paths{b: everything}, false},
	} {
		events := make(chan struct{}, 1)
		w, err := Open(events)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []Paths{{a: everything}, c.then} {
			if err := w.Follow(want); err != nil {
				t.Error(err)
			}
		}
		write(a)
		if c.news {
			<-events
		}
		w.Close()
		if !c.news && len(events) > 0 {
			t.Errorf("%s: it told of something", name)
		}
	}
}
