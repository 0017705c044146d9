package plugin

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
)

// TestDelOnAnyDisk: a DEL that has nothing to do succeeds, and ends, whatever the state of the disk that the reservations
// are on.
func TestDelOnAnyDisk(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, n *node) (undo func()){
		"read-only": func(t *testing.T, n *node) func() {
			mustRun(t, "mount", "-o", "remount,ro", n.dir)
			return func() {}
		},
		"frozen": func(t *testing.T, n *node) func() {
			mustRun(t, "fsfreeze", "-f", n.dir)
			return func() { mustRun(t, "fsfreeze", "-u", n.dir) }
		},
		"a file in its place": func(t *testing.T, n *node) func() {
			if err := os.RemoveAll(n.storeDir()); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(n.storeDir(), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return func() {}
		},
		"pipes, devices and directories in it": func(t *testing.T, n *node) func() {
			at := func(name string) string { return filepath.Join(n.storeDir(), name) }
			for _, err := range []error{unix.Mkfifo(at("10.244.1.7"), 0o600), os.Symlink("/dev/zero", at("10.244.1.8")), os.Mkdir(at("10.244.1.9"), 0o700),
				os.WriteFile(at("10.244.1.10"), nil, 0o600), os.Truncate(at("10.244.1.10"), 1<<40), os.RemoveAll(at(indexDir)),
				os.WriteFile(at(indexDir), nil, 0o600)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t, ""), newNamespace(t)
			n.dir = ext4(t)
			n.lease(envV4)
			n.must("ADD", "a", pod, n.config(nil))
			n.must("DEL", "a", pod, n.config(nil))
			undo := spoil(t, n)
			ended := make(chan error, 1)
			c := n.command("DEL", "unknown", pod, n.config(nil))
			var out bytes.Buffer
			c.Stdout = &out
			inside(t, n.ns, c.Start)
			go func() { ended <- c.Wait() }()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("DEL of a pod that is unknown: %v\n%s", err, out.String())
				}
				undo()
			case <-time.After(testwait.Limit):
				undo()
				t.Errorf("DEL of a pod that is unknown does not end: %v", <-ended)
			}
		})
	}
}

// ext4 is a file system of its own, until the test ends.
func ext4(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "mkfs.ext4", "-q", image)
	mustRun(t, "mount", "-o", "loop", image, dir)
	t.Cleanup(func() { mustRun(t, "umount", "-l", dir) })
	return dir
}

func mustRun(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// TestStopsWithinASecond: an ADD that hangs where no context reaches is given up a second after SIGTERM.
func TestStopsWithinASecond(t *testing.T) {
	overdue, started := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { signal.Reset(syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE) })
	hangs := stoppable(func(context.Context, *skel.CmdArgs) error {
		close(started)
		select {}
	}, overdue)
	go func() { _ = hangs(t.Context(), &skel.CmdArgs{}) }()
	<-started
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-overdue:
	case <-time.After(testwait.Limit):
		t.Error("the ADD goes on after SIGTERM")
	}
}
