// Package fastpath reads and writes the fast path of pods' packets: eBPF programs where packets come in, and the maps
// that tell them of peers and pods. What the programs do not know goes the kernel's own way.
package fastpath

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/twill-net/twill/netstate"
)

// ErrUnavailable is in each error that says why this machine has no fast path.
var ErrUnavailable = errors.New("the fast path is not available")

// The maps of bpf/maps.h.
const (
	shortcutsMap = "shortcuts"
	podsMap      = "pods"
	settingsMap  = "settings"
	clockMap     = "clock"
	countsMap    = "counts"
)

// lifetime is how long the programs work after an Extend.
const lifetime = 10 * time.Minute

// Provider is the fast path of the network namespace of the thread that opened it. It writes objects of the kinds
// shortcut, podport, switch and program. Several goroutines may use it, on threads of that namespace.
type Provider struct {
	loaded
	folder string            // of the pins
	tcx    bool              // programs are attached by TCX; otherwise by cls_bpf
	files  map[string]string // pins by name, in the folder
	ids    map[netstate.ProgramName]int

	mu sync.Mutex // of the sockets, and of what was written
	sockets
	written written
}

// Open loads the programs and maps, or adopts those that an earlier process pinned below dir, which is a BPF file system.
// Adopting takes no more than the capability NET_ADMIN.
func Open(dir string) (*Provider, error) {
	if err := needConntrack(); err != nil {
		return nil, err
	}
	path, spec, have, err := pinned(dir)
	if err != nil {
		return nil, err
	}
	if !have.complete(spec) {
		fresh, err := load(spec, path, have)
		have.close()
		if err != nil {
			return nil, refused(err, path)
		}
		have = fresh
	}
	return connected(path, spec, have)
}

// OpenPinned opens what another process has pinned, to look at it and to pause. It loads nothing: programs of another
// version are not known to it.
func OpenPinned(dir string) (*Provider, error) {
	path, spec, have, err := pinned(dir)
	if err != nil {
		return nil, err
	}
	if len(have.maps) != len(spec.Maps) {
		have.close()
		return nil, fmt.Errorf("%w: below %s are no maps of this version; does the agent have its fast path on?",
			ErrUnavailable, path)
	}
	return connected(path, spec, have)
}

// pinned adopts what an earlier process pinned below dir, and returns in which folder that is and what all of it would be.
func pinned(dir string) (path string, spec *ebpf.CollectionSpec, have loaded, err error) {
	if path, err = folder(dir); err != nil {
		return path, nil, have, err
	}
	if spec, err = collection(); err != nil {
		return path, nil, have, err
	}
	have, err = adopt(spec, path)
	return path, spec, have, err
}

// connected returns a Provider of what is loaded.
func connected(folder string, spec *ebpf.CollectionSpec, have loaded) (*Provider, error) {
	p := &Provider{loaded: have, folder: folder, tcx: haveTCX(), files: pins(spec), ids: map[netstate.ProgramName]int{}}
	var err error
	if p.sockets, err = connect(); err != nil {
		p.Close()
		return nil, err
	}
	for _, name := range programs {
		program := p.programs[string(name)]
		if program == nil {
			continue // of another version
		}
		info, err := program.Info()
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("read about the program %s: %w", name, err)
		}
		id, _ := info.ID()
		p.ids[name] = int(id)
	}
	return p, nil
}

// Close closes the files. What is pinned and attached stays.
func (p *Provider) Close() {
	p.loaded.close()
	p.sockets.close()
}

// Writes reports whether objects of a kind are the fast path's.
func (p *Provider) Writes(k netstate.Kind) bool {
	switch k {
	case netstate.KindShortcut, netstate.KindPodPort, netstate.KindSwitch, netstate.KindProgram:
		return true
	}
	return false
}

// Observe returns the programs that are attached, the settings and, unless want is nil, the entries of the maps.
func (p *Provider) Observe(_ map[string][]string, want netstate.State) (netstate.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := netstate.State{}
	if err := p.observePrograms(state, want != nil); err != nil {
		return nil, err
	}
	if err := p.observeSwitch(state); err != nil {
		return nil, err
	}
	if want == nil {
		return state, nil
	}
	return state, p.observeEntries(want, state)
}

// Apply carries out one change. Deleting what is not there is success.
func (p *Provider) Apply(c netstate.Change) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o := c.Want.(type) {
	case nil:
		if was, ok := c.Was.(netstate.Program); ok {
			return p.detach(was)
		}
		return p.remove(c.Was)
	case netstate.Program:
		return p.attach(o)
	default:
		return p.put(o)
	}
}

// Blocked returns why no program may be attached now, or nothing. What somebody else wrote into the maps is a reason until
// the next Observe.
func (p *Provider) Blocked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ipsec != nil {
		n, err := ipsec(p.ipsec)
		switch {
		case err != nil:
			return err.Error()
		case n > 0:
			return fmt.Sprintf("this host has %d IPsec policies, and the fast path would pass by them", n)
		}
	}
	why, err := p.altered()
	if err != nil {
		return err.Error()
	}
	return why
}
