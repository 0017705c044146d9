package fastpath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// folder returns where the pins of the thread's network namespace are. A cookie is never used twice while the machine
// runs, unlike an inode number.
func folder(dir string) (string, error) {
	var file unix.Statfs_t
	if err := unix.Statfs(dir, &file); err != nil || uint32(file.Type) != unix.BPF_FS_MAGIC {
		return "", fmt.Errorf("%w: no BPF file system is mounted at %s", ErrUnavailable, dir)
	}
	name, err := namespace()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "twill", name), nil
}

// namespace returns the name of the thread's network namespace below twill in the BPF file system.
func namespace() (string, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(s)
	cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return "", fmt.Errorf("%w: this kernel gives network namespaces no cookies; 6.1 is the oldest that does: %w",
			ErrUnavailable, err)
	}
	return strconv.FormatUint(cookie, 16), nil
}

// loaded are the programs and maps in the kernel, by name.
type loaded struct {
	programs map[string]*ebpf.Program
	maps     map[string]*ebpf.Map
}

func (l loaded) close() {
	for _, p := range l.programs {
		_ = p.Close() // nothing was written to it
	}
	for _, m := range l.maps {
		_ = m.Close() // nor to this
	}
}

// adopt opens what is pinned. What is not there is left out.
func adopt(spec *ebpf.CollectionSpec, folder string) (loaded, error) {
	l, files := loaded{map[string]*ebpf.Program{}, map[string]*ebpf.Map{}}, pins(spec)
	for name := range spec.Maps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(folder, files[name]), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			l.maps[name] = m
			err = spec.Maps[name].Compatible(m)
		}
		if err != nil {
			l.close()
			return loaded{}, fmt.Errorf("open the map %s: %w", filepath.Join(folder, files[name]), err)
		}
	}
	for name := range spec.Programs {
		p, err := ebpf.LoadPinnedProgram(filepath.Join(folder, files[name]), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			l.close()
			return loaded{}, fmt.Errorf("open the program %s: %w", filepath.Join(folder, files[name]), err)
		}
		l.programs[name] = p
	}
	return l, nil
}

// complete reports whether all programs are there and use the maps that are.
func (l loaded) complete(spec *ebpf.CollectionSpec) bool {
	if len(l.maps) != len(spec.Maps) || len(l.programs) != len(spec.Programs) {
		return false
	}
	ours := map[ebpf.MapID]bool{}
	for _, m := range l.maps {
		if info, err := m.Info(); err == nil {
			id, _ := info.ID()
			ours[id] = true
		}
	}
	for _, p := range l.programs {
		info, err := p.Info()
		if err != nil {
			return false
		}
		used, known := info.MapIDs()
		if !known || slices.ContainsFunc(used, func(id ebpf.MapID) bool { return !ours[id] }) {
			return false
		}
	}
	return true
}

// load loads the programs into the kernel, with those of the maps that there are already, and pins all.
func load(spec *ebpf.CollectionSpec, folder string, have loaded) (loaded, error) {
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: have.maps})
	if err != nil {
		return loaded{}, explain(err)
	}
	l := loaded{c.Programs, c.Maps}
	if err := l.pin(pins(spec), folder, have); err != nil {
		l.close()
		return loaded{}, fmt.Errorf("%w: pin the programs below %s: %w", ErrUnavailable, folder, err)
	}
	return l, nil
}

// pin pins maps before programs: who finds the programs finds their maps.
func (l loaded) pin(files map[string]string, folder string, have loaded) error {
	for _, sub := range []string{"maps", "progs"} {
		if err := os.MkdirAll(filepath.Join(folder, sub), 0o700); err != nil {
			return err
		}
	}
	for name, m := range l.maps {
		if have.maps[name] == nil {
			if err := m.Pin(filepath.Join(folder, files[name])); err != nil {
				return err
			}
		}
	}
	for name, p := range l.programs {
		path := filepath.Join(folder, files[name])
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := p.Pin(path); err != nil {
			return err
		}
	}
	return sweep(files, folder)
}

// lostPins returns the files that should be pinned and are not.
func (p *Provider) lostPins() (files []string) {
	for name, file := range p.files {
		if p.maps[name] == nil && p.programs[name] == nil {
			continue // of another version
		}
		if _, err := os.Lstat(filepath.Join(p.folder, file)); errors.Is(err, fs.ErrNotExist) {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files
}

// pinAgain pins what somebody has removed the pins of. A clone has never been pinned: the original would not be again.
func (p *Provider) pinAgain() error {
	lost := p.lostPins()
	if len(lost) == 0 {
		return nil
	}
	again := loaded{map[string]*ebpf.Program{}, map[string]*ebpf.Map{}}
	defer again.close()
	for name, file := range p.files {
		if !slices.Contains(lost, file) {
			continue
		}
		var err error
		if m := p.maps[name]; m != nil {
			again.maps[name], err = m.Clone()
		} else {
			again.programs[name], err = p.programs[name].Clone()
		}
		if err != nil {
			return fmt.Errorf("pin %s again: %w", file, err)
		}
	}
	if err := again.pin(p.files, p.folder, loaded{}); err != nil {
		return fmt.Errorf("pin again what somebody has removed below %s: %w", p.folder, err)
	}
	return nil
}

// sweep removes the pins of other versions. What is attached of theirs goes on working.
func sweep(files map[string]string, folder string) error {
	keep := slices.Collect(maps.Values(files))
	for _, sub := range []string{"maps", "progs"} {
		entries, err := os.ReadDir(filepath.Join(folder, sub))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if name := sub + "/" + e.Name(); !slices.Contains(keep, name) {
				if err := os.Remove(filepath.Join(folder, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// explain says in a sentence why the kernel does not load the programs.
func explain(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		last := ""
		for _, line := range refused.Log {
			if line != "" {
				last = line
			}
		}
		return fmt.Errorf("%w: the kernel's verifier refuses the programs (%s): %w", ErrUnavailable, last, refused.Cause)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: loading programs takes the capabilities BPF, NET_ADMIN, PERFMON and SYS_ADMIN: %w",
			ErrUnavailable, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: this kernel has not all that the programs use; 6.1 is the oldest that has, with type "+
			"information (BTF) of its conntrack: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: the kernel does not load the programs: %w", ErrUnavailable, err)
}

// Detach takes the programs from all devices, and the qdiscs that they needed. What else is pinned stays. Without the BPF
// file system, with which links go, filters go too; nobody knows whose a qdisc is, and it stays.
func Detach(dir string) error {
	path, err := folder(dir)
	if err != nil && !errors.Is(err, ErrUnavailable) {
		return err
	}
	s, err := connect()
	if err == nil {
		err = s.removeQdiscs(path)
	}
	if err == nil {
		err = removeHooks(path)
	}
	s.close()
	return err
}

// Clean removes all that the fast path has in this network namespace: what Detach does, and what is pinned.
func Clean(dir string) error {
	if err := Detach(dir); err != nil {
		return err
	}
	path, err := folder(dir)
	if errors.Is(err, ErrUnavailable) {
		return nil // there are no pins
	}
	if err == nil {
		err = os.RemoveAll(path)
	}
	if err != nil {
		return fmt.Errorf("remove what the fast path pinned: %w", err)
	}
	_ = os.Remove(filepath.Dir(path)) // other namespaces may have pins there
	return nil
}
