package facts

import (
	"cmp"
	"errors"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// openFastPath opens the fast path that the agent has pinned, and notes how it does. Without pins there is none.
func (g *gathering) openFastPath(b backend.Backend) {
	f := &g.FastPath
	f.Wanted = g.settings.Shortcuts(b).On
	var err error
	dir := g.seenByAgent(g.settings.BPFFS)
	if dir != usualBPFFS {
		f.Dir = dir
	}
	g.fastPath, err = fastpath.OpenPinned(dir)
	if err != nil {
		f.Unpinned = errors.Is(err, fastpath.ErrUnavailable)
		if !f.Unpinned {
			g.unread("the fast path", err)
		}
		return
	}
	state, err := g.fastPath.Observe(nil, nil)
	if err == nil {
		err = g.count()
	}
	if err != nil {
		g.unread("the fast path", err)
		return
	}
	for _, o := range state.Sorted() {
		if p, ok := o.(netstate.Program); ok {
			f.Devices = append(f.Devices, p.Dev)
		}
	}
	f.Deadline, f.Paused = g.fastPath.Deadline(), g.fastPath.Paused()
	// An agent that has the fast path off deletes all of it. So what a dead one has left was on.
	f.Compared = f.Wanted && (g.Agent.FastPath != nil || !g.Agent.Running && len(state) > 0)
}

// count notes what the programs did.
func (g *gathering) count() error {
	counts, err := g.fastPath.Counts()
	for _, c := range counts.Results {
		switch {
		case c.Fast:
			g.FastPath.Fast += c.Packets
		case c.Result == "no-ct":
			g.FastPath.Untracked += c.Packets
		case c.Result == "state":
			g.FastPath.Tracked += c.Packets
		}
	}
	return err
}

// besideFastPath notes which pods' ports the agent keeps off the fast path: nobody else knows whose connections policies deny.
func (g *gathering) besideFastPath() {
	if g.Agent.FastPath == nil {
		return
	}
	for n, i := range g.Interfaces {
		g.Interfaces[n].Beside = cmp.Or(i.Beside, g.Agent.FastPath.Beside[i.Name])
	}
}

// shortcuts returns the fast path that should be: none where the agent says that it is off, or where it cannot be compared.
func (g *gathering) shortcuts(b backend.Backend) backend.FastPath {
	wanted := g.settings.Shortcuts(b)
	wanted.On = g.FastPath.Compared && (!g.Agent.Running || g.Agent.FastPath.On)
	return wanted
}

// usualBPFFS is where the fast path is pinned unless somebody says otherwise.
const usualBPFFS = "/sys/fs/bpf"
