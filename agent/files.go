package agent

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// writeFiles writes what the runtime and the CNI plugin read. Its error keeps a node that was never
// ready from becoming so; one that is ready stays so, because its pods' network is as good as
// before. A CNI config that cannot be replaced is reported, and is no error as long as the one that
// is installed can be used.
func (a *Agent) writeFiles(node backend.Node, snap subnet.Snapshot, synced bool) error {
	if err := a.protect(snap); err != nil {
		return err
	}
	if err := a.writeEnv(node, snap.Local); err != nil || !synced {
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
	a.Policies.Tunnels(snap.Tunnels())
	var subnets []netip.Prefix
	for _, stack := range snap.Local.Stacks {
		subnets = append(subnets, stack.Subnet)
	}
	return a.Policies.Protect(subnets)
}

// writeEnv writes the lease for the CNI plugin.
func (a *Agent) writeEnv(node backend.Node, lease subnet.Lease) error {
	env := subnet.Env{MTU: a.Backend.MTU(node), IPMasq: a.Firewall.Masq, BootID: subnet.BootID()}
	for _, stack := range lease.Stacks {
		pool, ok := a.Network.Pool(stack.Family())
		if !ok {
			continue
		}
		env.Networks = append(env.Networks, pool.Network)
		env.Subnets = append(env.Subnets, netip.PrefixFrom(backend.Gateway(stack.Subnet), stack.Subnet.Bits()))
	}
	if err := os.MkdirAll(filepath.Dir(a.Settings.SubnetFile), 0o755); err != nil {
		a.causes.Error(a.Log, "make the directory of subnet.env", err)
		return err
	}
	if err := a.files.Write(a.Settings.SubnetFile, 0o644, func() ([]byte, error) { return env.Format(), nil }); err != nil {
		return err
	}
	a.status.lease()
	return nil
}
