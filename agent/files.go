package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// nodeFiles is what the runtime and the CNI plugin read.
type nodeFiles struct {
	env    string // the content of subnet.env
	synced bool   // the CNI config, too
}

// written is which files were written last, or why they could not be.
type written struct {
	files nodeFiles
	err   error
}

var errNotFreed = errors.New("the addresses of an earlier boot are not freed yet")

// mayAdd reports whether pods may be added, for which addresses of an earlier boot must be free.
func (a *Agent) mayAdd() bool {
	if a.Freed == nil {
		return true
	}
	select {
	case <-a.Freed:
		return true
	default:
		return false
	}
}

// awaitFreed wakes the loop when pods may be added.
func (a *Agent) awaitFreed(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-a.Freed:
		a.trigger()
	}
	return nil
}

var errUnwritten = errors.New("subnet.env and the CNI config are not written yet")

// keepFiles hands over what the runtime and the CNI plugin read to the goroutine that writes it, and returns why it is not
// there. Its error keeps a node that was never ready from becoming so; one that is ready stays so, because its pods'
// network is as good as before.
func (a *Agent) keepFiles(node backend.Node, snap subnet.Snapshot, synced bool) error {
	if err := a.protect(snap); err != nil {
		return err
	}
	if !a.mayAdd() {
		return errNotFreed
	}
	files := nodeFiles{string(a.envOf(node, snap.Local).Format()), synced}
	replace(a.outputs, files)
	if last := a.written.Load(); last != nil && last.files == files {
		return last.err
	}
	return errUnwritten
}

// writeFiles is the goroutine that writes what the loop hands over, for which the loop does not wait: a disk may take its
// time, or take nothing any more. The loop is told of what changes, and hands over again what could not be written.
func (a *Agent) writeFiles() error {
	for files := range a.outputs {
		a.writeHanded(files)
		a.files.Check()
	}
	return nil
}

func (a *Agent) writeHanded(files nodeFiles) {
	now := &written{files, a.write(files)}
	before := a.written.Swap(now)
	if before == nil || before.files != files || (before.err == nil) != (now.err == nil) {
		a.trigger()
	}
}

// write writes the files. A CNI config that cannot be replaced is reported, and is no error as long as the one that is
// installed can be used.
func (a *Agent) write(files nodeFiles) error {
	if err := a.writeEnv(files.env); err != nil || !files.synced {
		return err
	}
	err := a.Settings.Conflist.write(a.files)
	switch {
	case err == nil:
		return nil
	case !a.Settings.Conflist.usable():
		a.causes.Error(a.Log, "install the CNI config", err, "node", a.Node)
		return err
	case a.causes.Error(a.Log, "the CNI config stays as it was", err, "node", a.Node):
		a.event("Warning", "ConflistNotWritten", clip(err.Error()))
	}
	return nil
}

// protect returns an error while network policies do not protect this node's pods.
func (a *Agent) protect(snap subnet.Snapshot) error {
	if a.Policies == nil {
		return nil
	}
	a.Policies.Leases(snap.Leases(a.Network))
	var subnets []netip.Prefix
	for _, stack := range snap.Local.Stacks {
		subnets = append(subnets, stack.Subnet)
	}
	return a.Policies.Protect(subnets)
}

// envOf returns the lease for the CNI plugin.
func (a *Agent) envOf(node backend.Node, lease subnet.Lease) subnet.Env {
	env := subnet.Env{MTU: a.For(lease).PodMTU(node), IPMasq: a.Firewall.Masq, BootID: subnet.BootID()}
	for _, stack := range lease.Stacks {
		pool, ok := a.Network.Pool(stack.Family())
		if !ok {
			continue
		}
		env.Networks = append(env.Networks, pool.Network)
		env.Subnets = append(env.Subnets, netip.PrefixFrom(backend.Gateway(stack.Subnet), stack.Subnet.Bits()))
	}
	return env
}

func (a *Agent) writeEnv(content string) error {
	if err := os.MkdirAll(filepath.Dir(a.Settings.SubnetFile), 0o755); err != nil {
		a.causes.Error(a.Log, "make the directory of subnet.env", err)
		return err
	}
	if err := a.files.Write(a.Settings.SubnetFile, 0o644, func() ([]byte, error) { return []byte(content), nil }); err != nil {
		return err
	}
	a.status.lease()
	return nil
}
