// Package fastpath reads and writes the fast path of pods' packets: eBPF programs where packets come in, and the maps
// that tell them of peers and pods. What the programs do not know goes the kernel's own way.
package fastpath

import (
	"errors"
	"time"

	"github.com/twill-net/twill/netstate"
)

// ErrUnavailable is in each error that says why this machine has no fast path.
var ErrUnavailable = errors.New("the fast path is not available")

// Provider is the fast path of the network namespace of the thread that opened it. It writes objects of the kinds
// shortcut, podport, switch and program. Several goroutines may use it.
type Provider struct{}

// Count is how many packets of one direction had one result.
type Count struct {
	Program        netstate.ProgramName
	Result         string // a netstate.ShortcutMode, or why the kernel's own path was taken
	Fast           bool   // the program sent them on
	Packets, Bytes uint64
}

// Counts is what the programs did since their maps were made.
type Counts struct {
	Results   []Count // in the same order each time, also those of no packets
	Refreshes uint64  // of conntrack entries' timeouts
	Failures  uint64  // of the kernel's functions that programs call, where none is expected
}

// Open loads the programs and maps, or adopts those that an earlier process pinned below dir, which is a BPF file system.
func Open(dir string) (*Provider, error) { return nil, ErrUnavailable }

// OpenPinned opens what another process has pinned, to read counts and to pause.
func OpenPinned(dir string) (*Provider, error) { return nil, ErrUnavailable }

// Clean removes what is pinned for this network namespace. Nothing may be attached any more.
func Clean(dir string) error { return nil }

// Close closes the files. What is pinned and attached stays.
func (p *Provider) Close() {}

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
	return netstate.State{}, nil
}

// Apply carries out one change. Deleting what is not there is success.
func (p *Provider) Apply(c netstate.Change) error { return nil }

// Extend lets the programs work for ten minutes more.
func (p *Provider) Extend() error { return nil }

// Blocked returns why no program may be attached now, or nothing.
func (p *Provider) Blocked() string { return "" }

// Counts reads what the programs did.
func (p *Provider) Counts() (Counts, error) { return Counts{}, nil }

// Pause makes all packets go the kernel's own way until then.
func (p *Provider) Pause(until time.Time) error { return nil }

// Paused returns until when the fast path is paused, or the zero time.
func (p *Provider) Paused() time.Time { return time.Time{} }
