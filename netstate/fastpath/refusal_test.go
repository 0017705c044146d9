package fastpath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// drop leaves the thread of a space the capabilities of an agent in a container.
func (s *space) drop() {
	s.t.Helper()
	s.do(func() {
		const kept = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{{Effective: kept, Permitted: kept}}
		if err := unix.Capset(&header, &data[0]); err != nil {
			s.t.Error(err)
		}
	})
}

// TestFewCapabilities: an agent with NET_ADMIN and NET_RAW alone does all that there is to do with the programs that
// Load has pinned, whatever kernel.unprivileged_bpf_disabled says.
func TestFewCapabilities(t *testing.T) {
	a, b := pair(t)
	for _, n := range []*node{a, b} {
		n.do(func() {
			if err := Load(n.dir); err != nil {
				t.Error(err)
			}
		})
		n.drop()
		n.do(func() {
			if _, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 1,
				Flags: unix.BPF_F_NO_PREALLOC}); !errors.Is(err, unix.EPERM) {
				t.Errorf("a thread without the capability BPF makes a map: %v", err)
			}
		})
		n.open()
		n.do(func() {
			_, err := n.p.Counts()
			if err = errors.Join(err, n.p.Pause(time.Now().Add(time.Hour)), n.p.Pause(time.Time{}), n.p.Extend()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, mode := range modes {
		a.become(b, mode)
		b.become(a, mode)
		before := a.count(netstate.FromPod, string(mode))
		e := newEcho(t, a.pod, b.pod, b.pod4())
		e.assured()
		testwait.Until(t, string(mode)+" takes the fast path", func() bool {
			e.must(100)
			return a.count(netstate.FromPod, string(mode)) > before
		})
	}
	a.bring(nil)
	a.do(func() {
		if err := Clean(a.dir); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(a.p.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Clean: %v", err)
	}
}

// TestRefusal: an agent that may load nothing says what Load was told, and forgets it when Load succeeds.
func TestRefusal(t *testing.T) {
	s := newSpace(t)
	check := func(load, open string) {
		t.Helper()
		s.do(func() {
			if err := Load(s.dir); !says(err, load) {
				t.Errorf("Load: %v, want %q", err, load)
			}
			p, err := Open(s.dir)
			if !says(err, open) {
				t.Errorf("Open: %v, want %q", err, open)
			}
			if err == nil {
				p.Close()
			}
		})
	}
	s.do(func() {
		path, err := folder(s.dir)
		if err == nil {
			err = errors.Join(os.MkdirAll(path, 0o700), os.Symlink("an old kernel", filepath.Join(path, refusalLink)))
		}
		if err != nil {
			t.Error(err)
		}
	})
	check("", "")
	s.do(func() {
		if err := Clean(s.dir); err != nil {
			t.Error(err)
		}
	})
	s.drop()
	check("loading programs takes the capabilities", "loading programs takes the capabilities")
	s.do(func() {
		path, _ := folder(s.dir)
		link := filepath.Join(path, refusalLink)
		if err := errors.Join(os.Remove(link), os.Symlink("an old kernel", link)); err != nil {
			t.Error(err)
		}
		if _, err := Open(s.dir); err == nil || err.Error() != ErrUnavailable.Error()+": an old kernel" {
			t.Errorf("Open: %v", err)
		}
	})
}

func says(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return errors.Is(err, ErrUnavailable) && strings.Contains(err.Error(), text)
}

// TestDetach: an agent that can have no fast path any more takes the programs from the devices. With the BPF file system
// they can come back; when it is lost, links have gone with it.
func TestDetach(t *testing.T) {
	for _, classic := range []bool{false, true} {
		a, b := fastBy(t, netstate.Encapsulate, classic)
		e := newEcho(t, a.pod, b.pod, b.pod4())
		e.assured()
		detach := func(dir string) {
			a.do(func() {
				if err := Detach(dir); err != nil {
					t.Error(err)
				}
			})
			for _, dev := range []string{"cni0", "flannel.1", "eth0"} {
				if text := a.command("tc", "filter", "show", "dev", dev, "ingress"); text != "" {
					t.Errorf("%s has still\n%s", dev, text)
				}
			}
			before := a.counted()
			e.must(100)
			if now := a.counted(); now != before {
				t.Errorf("a program still works: before %s, now %s", before, now)
			}
		}
		detach(a.dir)
		a.bring(a.want(b, netstate.Encapsulate))
		if classic {
			detach(t.TempDir())
			a.bring(a.want(b, netstate.Encapsulate))
		}
		a.command("umount", "-l", a.dir)
		detach(a.dir)
	}
}
