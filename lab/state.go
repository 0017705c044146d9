package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/host"
)

// state is what a later program needs to use a lab and to remove it; state.json.
type state struct {
	Spec     Spec
	Complete bool                    // Up came to its end
	Servers  map[string]host.Process // etcd, apiserver
	Nodes    []*nodeState            // in the order of their numbers
	Flags    []string                `json:",omitempty"` // of all agents, behind the others
}

type nodeState struct {
	Name   string
	Number int
	Agent  host.Process // zero: it was never started
	Proxy  host.Process // kube-proxy; zero: there is none
	Pods   []*podState

	Subnets []netip.Prefix `json:",omitempty"` // kept for it beside those of its site
}

type podState struct {
	Name      string
	Addrs     []netip.Addr      // IPv4 first
	Namespace string            `json:",omitempty"` // of Kubernetes; empty: default
	Labels    map[string]string `json:",omitempty"` // beside those that all pods have
}

const stateFile = "state.json"

func readState(dir string) (state, error) {
	var st state
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("read %s: %w", filepath.Join(dir, stateFile), err)
	}
	return st, nil
}

// Names are the names of a lab's nodes, and of its pods as NODE/POD. Dir may be empty. It takes no rights to ask.
func Names(dir, name string) (nodes, pods []string, err error) {
	st, err := readState(Spec{Dir: dir, Name: name}.withDefaults().dir())
	if err != nil {
		return nil, nil, notThere(err, name)
	}
	for _, n := range st.Nodes {
		nodes = append(nodes, n.Name)
		for _, p := range n.Pods {
			pods = append(pods, n.Name+"/"+p.Name)
		}
	}
	return nodes, pods, nil
}

// change alters the state and writes it.
func (l *Lab) change(alter func(*state)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	alter(&l.state)
	data, err := json.MarshalIndent(l.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the lab's state: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(l.dir, stateFile), data, 0o644); err != nil {
		return fmt.Errorf("write the lab's state: %w", err)
	}
	if l.spec.NetworkPolicy {
		return l.writePods()
	}
	return nil
}

// view reads the state.
func (l *Lab) view(read func(*state)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read(&l.state)
}

// lock keeps two programs from building or removing the same lab at once. The file goes with the lab: unlock
// removes it when the lab's directory is gone.
func lock(spec Spec) (unlock func(), err error) {
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the labs' directory: %w", err)
	}
	path := spec.dir() + ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lab's lock: %w", err)
	}
	// A lock on a file that its last holder has removed meanwhile locks nothing.
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !isAt(f, path) {
		f.Close()
		return nil, fmt.Errorf("lab %s: another program is building or removing it", spec.Name)
	}
	return func() {
		if _, err := os.Stat(spec.dir()); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path) // a leftover is locked and removed the next time
		}
		f.Close()
	}, nil
}

func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(open, there)
}

// ErrNoLab says that there is no lab of that name.
var ErrNoLab = errors.New("there is no such lab")

func notThere(err error, name string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lab %s: %w: twillctl lab up makes one", name, ErrNoLab)
	}
	return err
}
