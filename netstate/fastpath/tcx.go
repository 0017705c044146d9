package fastpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/twill-net/twill/netstate"
)

// linkPins is the folder of our TCX links. A link that no pin and no process holds is detached by the kernel.
const linkPins = "links"

// hook is one of our TCX links.
type hook struct {
	id      link.ID
	program ebpf.ProgramID
	index   uint32 // of its device; 0: the device is gone, or somebody detached it
	path    string // of its pin; empty: it has none
}

// loopback is the index of a device that each network namespace has.
const loopback = 1

// haveTCX reports whether the kernel attaches programs by TCX, as 6.6 does.
func haveTCX() bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return err == nil
}

// hookPin returns the pin of a device's link. A BPF file system allows no dots in names, and the kernel no percent signs in
// those of devices.
func hookPin(folder string, o netstate.Program) string {
	return filepath.Join(folder, linkPins, string(o.Name)+"-"+strings.ReplaceAll(o.Dev, ".", "%2E"))
}

// hooks returns the links that are pinned.
func hooks(folder string) (all []hook, err error) {
	entries, err := os.ReadDir(filepath.Join(folder, linkPins))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the links of the fast path: %w", err)
	}
	for _, e := range entries {
		h, err := readHook(filepath.Join(folder, linkPins, e.Name()))
		switch {
		case err == nil:
			all = append(all, h)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return all, nil
}

func readHook(path string) (h hook, err error) {
	h.path = path
	l, err := h.open()
	if err != nil {
		return h, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return h, fmt.Errorf("read about the link %s: %w", path, err)
	}
	h.id, h.program = info.ID, info.Program
	if t := info.TCX(); t != nil {
		h.index = t.Ifindex
	}
	return h, nil
}

// open opens the link, which takes the capability SYS_ADMIN if it has no pin.
func (h hook) open() (l link.Link, err error) {
	if h.path == "" {
		l, err = link.NewFromID(h.id)
	} else {
		l, err = link.LoadPinnedLink(h.path, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("open the link %d %s: %w", h.id, h.path, err)
	}
	return l, nil
}

// remove detaches the program.
func (h hook) remove() error {
	l, err := h.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.Close()
	if err := errors.Join(l.Detach(), l.Unpin()); err != nil {
		return fmt.Errorf("detach the program of the link %d: %w", h.id, err)
	}
	return nil
}

// sides are the places of TCX programs at a device.
var sides = map[ebpf.AttachType]string{ebpf.AttachTCXIngress: "ingress", ebpf.AttachTCXEgress: "egress"}

// addHooks adds what TCX has at one side of a device. Ours are the links that are pinned, and those of this version's
// programs.
func (p *Provider) addHooks(a *attached, index uint32, at ebpf.AttachType, links []hook) error {
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(index), Attach: at})
	if err != nil {
		return fmt.Errorf("list the TCX programs: %w", err)
	}
	for _, program := range result.Programs {
		id, linked := program.LinkID()
		i := slices.IndexFunc(links, func(h hook) bool { return linked && h.id == id })
		switch {
		case i >= 0:
			a.hooks = append(a.hooks, links[i])
		case linked && at == ebpf.AttachTCXIngress && p.nameOf(program.ID) != "":
			a.hooks = append(a.hooks, hook{id: id, program: program.ID, index: index})
		default:
			a.other = append(a.other, fmt.Sprintf("%s tcx program %d", sides[at], program.ID))
		}
	}
	return nil
}

// nameOf returns which of this version's programs has an ID.
func (p *Provider) nameOf(id ebpf.ProgramID) netstate.ProgramName {
	for name, ours := range p.ids {
		if ours == int(id) {
			return name
		}
	}
	return ""
}

// decodeHooks says how links of ours are not the one that should be.
func (p *Provider) decodeHooks(ours []hook) (name netstate.ProgramName, extra words) {
	first := ours[0]
	name = p.nameOf(first.program)
	if name == "" { // who may not open it can ask no more of the kernel
		before, _, _ := strings.Cut(filepath.Base(first.path), "-")
		name = netstate.ProgramName(before)
		extra.add(true, "another version (id %d)", first.program)
	}
	extra.add(len(ours) > 1, "and %d more", len(ours)-1)
	return name, extra
}

// putHook has TCX run a program, and then takes away what else of ours the device has.
func (p *Provider) putHook(index uint32, o netstate.Program, have attached) error {
	if err := p.makeRoom(); err != nil {
		return err
	}
	keep := -1
	for i, h := range have.hooks { // the kernel refuses a program that is there a second time
		if keep < 0 || p.nameOf(h.program) == o.Name {
			keep = i
		}
	}
	var old *hook
	if keep >= 0 {
		old = &have.hooks[keep]
	}
	if err := p.putLink(index, o, old); err != nil {
		return fmt.Errorf("attach the program %s: %w", o.Name, err)
	}
	for i, h := range have.hooks {
		if i != keep {
			if err := h.remove(); err != nil {
				return err
			}
		}
	}
	return p.deleteFilters(have.ours)
}

// putLink makes a link and pins it, or gives an old one the program and the pin that it should have.
func (p *Provider) putLink(index uint32, o netstate.Program, old *hook) error {
	program, path := p.programs[string(o.Name)], hookPin(p.folder, o)
	var l link.Link
	var err error
	if old == nil {
		l, err = link.AttachTCX(link.TCXOptions{Interface: int(index), Program: program, Attach: ebpf.AttachTCXIngress})
	} else {
		l, err = old.open()
	}
	if err != nil {
		return err
	}
	defer l.Close()
	if old != nil {
		if err := l.Update(program); err != nil {
			return err
		}
	}
	if old == nil || old.path != path { // a device that was renamed may have left its pin
		if err := (hook{path: path}).remove(); err != nil { // the kernel takes its time with a link that lost its last pin
			return err
		}
	}
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("pin the link %s: %w", path, err)
	}
	return nil
}

// makeRoom makes the folder of links, and sweeps those whose device is gone.
func (p *Provider) makeRoom() error {
	if err := os.MkdirAll(filepath.Join(p.folder, linkPins), 0o700); err != nil {
		return fmt.Errorf("make the folder of links: %w", err)
	}
	links, err := hooks(p.folder)
	if err != nil {
		return err
	}
	for _, h := range links {
		if h.index == 0 {
			if err := h.remove(); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeHooks detaches all links of a folder.
func removeHooks(folder string) error {
	if folder == "" {
		return nil
	}
	links, err := hooks(folder)
	if err != nil {
		return err
	}
	for _, h := range links {
		if err := h.remove(); err != nil {
			return err
		}
	}
	return nil
}
