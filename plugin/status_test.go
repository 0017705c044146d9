package plugin

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// entries are what a name in a directory can be, and whether it is a reservation, or in doubt taken for one.
var entries = []struct {
	what     string
	reserves bool
	make     func(path string) error
}{
	{"reservation", true, func(path string) error { return os.WriteFile(path, []byte("pod\r\neth0"), 0o600) }},
	{"reservation of the old form", true, func(path string) error { return os.WriteFile(path, []byte("pod"), 0) }},
	{"empty file", false, func(path string) error { return os.WriteFile(path, nil, 0o600) }},
	{"file of a terabyte", true, func(path string) error {
		return errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Truncate(path, 1<<40))
	}},
	{"directory", false, func(path string) error { return os.Mkdir(path, 0o755) }},
	{"FIFO", false, func(path string) error { return unix.Mkfifo(path, 0o600) }},
	{"device", false, func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }}, // zero
	{"link to a device", false, func(path string) error { return os.Symlink("/dev/zero", path) }},
	{"link to nowhere", false, func(path string) error { return os.Symlink("nowhere", path) }},
	{"link to itself", false, func(path string) error { return os.Symlink(filepath.Base(path), path) }},
}

// state is a random directory of networks' reservations.
type state struct {
	*rand.Rand
	free map[netip.Addr]bool // of the range, those that a pod can get
	says []string
	err  error
}

func (s *state) put(path string) (reserves bool) {
	e := entries[s.IntN(len(entries))]
	s.says = append(s.says, filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))+": "+e.what)
	s.err = errors.Join(s.err, e.make(path))
	return e.reserves
}

// fill makes what other programs, administrators and power losses leave: in the own store, in those of other networks, and in
// the places of stores.
func (s *state) fill(networks, own string) {
	for _, name := range []string{own, "cni0", "net1", "backup.tgz"} {
		dir := filepath.Join(networks, name)
		if name != own && s.IntN(3) == 0 {
			s.put(dir)
			continue
		}
		s.err = errors.Join(s.err, os.MkdirAll(dir, 0o755))
		for _, a := range slices.SortedFunc(maps.Keys(s.free), netip.Addr.Compare) {
			if s.IntN(3) > 0 {
				continue
			}
			// What is in the own store under the name of an address keeps the name, unless it is an empty file.
			if s.put(filepath.Join(dir, a.String())) || name == own && !strings.HasSuffix(s.says[len(s.says)-1], ": empty file") {
				s.free[a] = false
			}
		}
		for _, other := range []string{"last_reserved_ip.0", "note~", ".twill", "10.244.9.9"} {
			if s.IntN(4) == 0 && other != ".twill" {
				s.put(filepath.Join(dir, other))
			}
		}
	}
}

// TestStatusOfRandomState: whatever there is beside a lease, STATUS is well, and a pod gets an address if there is a free one.
func TestStatusOfRandomState(t *testing.T) {
	const seeds = 30
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			n, pod := newNode(t, strings.Replace(envV4, "10.244.1.1/24", "10.244.1.1/29", 1)), newNamespace(t)
			s := &state{Rand: rand.New(rand.NewPCG(seed, 0)), free: map[netip.Addr]bool{}}
			for i := range byte(5) {
				s.free[netip.AddrFrom4([4]byte{10, 244, 1, 2 + i})] = true
			}
			s.fill(filepath.Join(n.dir, "networks"), "cbr0")
			if s.err != nil {
				t.Fatal(s.err)
			}
			t.Logf("%s", strings.Join(s.says, "\n"))
			n.must("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"}))
			n.must("DEL", "never", "", n.config(nil))
			n.must("GC", "", "", n.config(map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []any{
				map[string]any{"containerID": "pod", "ifname": "eth0"}}}))
			room := false
			for _, free := range s.free {
				room = room || free
			}
			if !room {
				n.mustFail(11, "all 5 addresses of 10.244.1.0/29", "ADD", "a", pod, n.config(nil))
				n.must("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"}))
				return
			}
			got := addresses(t, n.must("ADD", "a", pod, n.config(nil)))
			if len(got) != 1 || !s.free[got[0]] {
				t.Errorf("the pod got %s, want one of %v", got, s.free)
			}
			n.must("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"}))
			n.must("DEL", "a", pod, n.config(nil))
		})
	}
}

// TestNeighbourHolds: of what has an address's name in another network's store, a reservation keeps the address from pods, and so
// does a file that cannot be read. Nothing else does.
func TestNeighbourHolds(t *testing.T) {
	n, pod := newNode(t, strings.Replace(envV4, "10.244.1.1/24", "10.244.1.1/30", 1)), newNamespace(t)
	path := filepath.Join(n.dir, "networks", "cni0", "10.244.1.2") // the only one of the lease
	for _, e := range entries {
		err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Dir(path), 0o755), e.make(path))
		if err != nil {
			t.Fatal(err)
		}
		if e.reserves {
			n.mustFail(11, "all 1 addresses of 10.244.1.0/30", "ADD", "a", pod, n.config(nil))
			continue
		}
		if got := addresses(t, n.must("ADD", "a", pod, n.config(nil))); len(got) != 1 {
			t.Errorf("%s: the pod got %s", e.what, got)
		}
		n.must("DEL", "a", pod, n.config(nil))
	}
}
