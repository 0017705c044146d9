package host_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// inFreshRun runs the calling test again in a mount namespace of its own, where /run is empty and of the given
// propagation, and reports whether this is that run.
func inFreshRun(t *testing.T, propagation uintptr) bool {
	t.Helper()
	if os.Getenv("TWILL_FRESH_RUN") == t.Name() {
		must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
		must(t, unix.Mount("", "/run", "", propagation, ""))
		return true
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+pattern, "-test.v")
	cmd.Env = append(os.Environ(), "TWILL_FRESH_RUN="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// mounts are the mounts on the namespace's name, also those that another mount hides.
func mounts(t *testing.T, h host.Host) (n int) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if strings.Fields(line)[4] == h.Path() {
			n++
		}
	}
	return n
}

func gone(t *testing.T, h host.Host) {
	t.Helper()
	must(t, h.Delete())
	if _, err := os.Lstat(h.Path()); !errors.Is(err, fs.ErrNotExist) || mounts(t, h) > 0 || h.Exists() {
		t.Errorf("after delete: %v, %d mounts", err, mounts(t, h))
	}
}

var propagations = map[string]uintptr{"shared": unix.MS_SHARED, "private": unix.MS_PRIVATE}

// TestNamesBesideIproute2: whoever makes the first namespace since boot, both see each other's, and each name has one
// mount that counts.
func TestNamesBesideIproute2(t *testing.T) {
	for name, propagation := range propagations {
		for order, first := range map[string]bool{"iproute2 first": true, "iproute2 second": false} {
			t.Run(name+"/"+strings.ReplaceAll(order, " ", "_"), func(t *testing.T) {
				if !inFreshRun(t, propagation) {
					return
				}
				h, other := host.Host{Name: "ours"}, host.Host{Name: "theirs"}
				if first {
					ip(t, "netns", "add", other.Name)
				}
				must(t, h.Create())
				before := mounts(t, h)
				if !first {
					ip(t, "netns", "add", other.Name)
				}
				if got := mounts(t, h); got != before {
					t.Errorf("iproute2's first namespace mounted ours again: %d mounts, want %d", got, before)
				}
				for _, ns := range []host.Host{h, other} {
					if _, err := ns.Exec(t.Context(), "ip", "link", "show", "lo"); err != nil || !ns.Exists() {
						t.Errorf("%s: exists %v, %v", ns.Name, ns.Exists(), err)
					}
					ip(t, "-n", ns.Name, "link", "show", "lo")
				}
				gone(t, h)
				ip(t, "netns", "del", other.Name)
			})
		}
	}
}

// TestDeleteClearsAMess: whatever has been mounted over and under a name, deleting it leaves nothing, and leaves other
// names alone.
func TestDeleteClearsAMess(t *testing.T) {
	bind := func(from, to string, flags uintptr) error { return unix.Mount(from, to, "", unix.MS_BIND|flags, "") }
	for name, mess := range map[string]func(h host.Host) error{
		"hidden": func(host.Host) error { return bind(host.Dir, host.Dir, 0) },
		"hidden twice": func(host.Host) error {
			return errors.Join(bind(host.Dir, host.Dir, unix.MS_REC), bind(host.Dir, host.Dir, 0))
		},
		"mounted twice":       func(h host.Host) error { return bind("/proc/self/ns/net", h.Path(), 0) },
		"no namespace":        func(h host.Host) error { return unix.Unmount(h.Path(), unix.MNT_DETACH) },
		"directory unmounted": func(host.Host) error { return unix.Unmount(host.Dir, unix.MNT_DETACH) },
	} {
		for kind, propagation := range propagations {
			t.Run(strings.ReplaceAll(name, " ", "_")+"/"+kind, func(t *testing.T) {
				if !inFreshRun(t, propagation) {
					return
				}
				h, other := host.Host{Name: "ours"}, host.Host{Name: "other"}
				must(t, h.Create())
				must(t, other.Create())
				must(t, mess(h))
				seen := other.Exists()
				gone(t, h)
				if other.Exists() != seen {
					t.Errorf("another namespace exists: %v, before %v", !seen, seen)
				}
				must(t, h.Create())
				if !h.Exists() {
					t.Error("made anew it does not exist")
				}
				gone(t, h)
				gone(t, other)
			})
		}
	}
}

// TestHiddenIsASentence: what to do stands in the error.
func TestHiddenIsASentence(t *testing.T) {
	if !inFreshRun(t, unix.MS_PRIVATE) {
		return
	}
	h := host.Host{Name: "ours"}
	must(t, h.Create())
	must(t, unix.Unmount(h.Path(), unix.MNT_DETACH))
	_, err := h.Exec(t.Context(), "true")
	if err == nil || !strings.Contains(err.Error(), filepath.Join(host.Dir, "ours")+" is no network namespace") {
		t.Errorf("got %v", err)
	}
}
