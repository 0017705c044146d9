package daemon

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// fastPathOptions are the flags about the fast path. Flannel has none of them.
type fastPathOptions struct {
	mode string // auto, on or off
	dir  string
	load bool
}

func (o *fastPathOptions) register(fs *flag.FlagSet) {
	fs.StringVar(&o.mode, "fast-path", "auto",
		"pods' packets to other nodes pass by the kernel's routes and rules, with eBPF: auto (as net-conf's FastPath says), on or off")
	fs.StringVar(&o.dir, "bpffs", "/sys/fs/bpf", "the BPF file system that the fast path's programs are pinned in")
	fs.BoolVar(&o.load, "load-fast-path", false,
		"load the fast path's programs for an agent that may not, and exit; that they cannot be loaded is no failure")
}

func (o *fastPathOptions) check() error {
	switch o.mode {
	case "auto", "on", "off":
		return nil
	}
	return fmt.Errorf("--fast-path %q: want auto, on or off", o.mode)
}

// wantedFastPath returns what the network config and the flag say, and why the backend can have no fast path.
func (o *options) wantedFastPath(b backend.Backend) (wanted backend.FastPath, why string) {
	wanted = agent.Settings{FastPath: o.fastPath.mode}.Shortcuts(b)
	switch _, ok := backend.Parts(b)[0].(backend.Accelerable); {
	case !ok:
		why = "only the backends vxlan and host-gw can have one"
	case o.bridge == "":
		why = "it knows pods by the ports of twilld's bridge, and --bridge is empty"
	}
	return wanted, why
}

// noFastPath is the fast path of an agent that has no programs, and why it has none.
type noFastPath string

func (noFastPath) Extend() error     { return nil }
func (n noFastPath) Blocked() string { return string(n) }

// openFastPath opens the fast path if it is wanted. Where there can be none the agent works without, and says why. A dry
// run loads nothing: as long as no programs are pinned, there is nothing to compare with.
func openFastPath(o *options, b backend.Backend, e *extras) (backend.FastPath, agent.FastPath) {
	wanted, why := o.wantedFastPath(b)
	if !wanted.On || why != "" {
		return wanted, noFastPath(why)
	}
	if o.dryRun {
		pinned, err := fastpath.OpenPinned(o.fastPath.dir)
		if err != nil {
			return wanted, noFastPath("")
		}
		pinned.Close()
	}
	p, err := fastpath.Open(o.fastPath.dir)
	if err != nil {
		return wanted, noFastPath(reason(err))
	}
	e.parts, e.closers = append(e.parts, p), append(e.closers, p.Close)
	return wanted, p
}

// reason returns what an error says beside that there is no fast path.
func reason(err error) string {
	return strings.TrimPrefix(err.Error(), fastpath.ErrUnavailable.Error()+": ")
}

// loadFastPath loads what an agent with fewer capabilities then adopts. A node where that fails has an agent without.
func loadFastPath(dir string, log *slog.Logger) {
	if err := fastpath.Load(dir); err != nil {
		log.Warn("the fast path's programs are not loaded", "reason", reason(err))
		return
	}
	log.Info("the fast path's programs are loaded", "bpffs", dir)
}

// removeFastPath detaches and deletes what an agent with a fast path left, and returns what that was.
func removeFastPath(dir string) (netstate.Plan, error) {
	pinned, err := fastpath.OpenPinned(dir)
	if err != nil {
		return nil, fastpath.Clean(dir)
	}
	pinned.Close()
	p, err := fastpath.Open(dir)
	if err != nil {
		return nil, errors.Join(err, fastpath.Clean(dir))
	}
	defer p.Close()
	have, err := p.Observe(nil, netstate.State{})
	if err != nil {
		return nil, err
	}
	plan := netstate.Diff(nil, have)
	for _, c := range plan {
		if err := p.Apply(c); err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
	}
	return plan, fastpath.Clean(dir)
}

// dropFastPath removes what an earlier agent left, if this one wants no fast path. If it wants one and can have none, it
// takes the programs from the devices: nobody would tell them of changes.
func dropFastPath(o *options, wanted backend.FastPath, has agent.FastPath, log *slog.Logger) {
	if wanted.On {
		if _, none := has.(noFastPath); none {
			if err := fastpath.Detach(o.fastPath.dir); err != nil {
				log.Error("detach the fast path of an earlier agent", "err", err)
			}
		}
		return
	}
	plan, err := removeFastPath(o.fastPath.dir)
	switch {
	case err != nil:
		log.Error("remove the fast path, which nobody wants any more", "err", err)
	case len(plan) > 0:
		log.Info("the fast path is removed", "objects", len(plan))
	}
}
