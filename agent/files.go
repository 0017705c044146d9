package agent

import (
	"net/netip"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// writeFiles writes what the runtime and the CNI plugin read. Its error keeps a node that was never
// ready from becoming so; one that is ready stays so, because its pods' network is as good as
// before. A CNI config that cannot be replaced is reported, and is no error as long as the one that
// is installed can be used.
func (a *Agent) writeFiles(node backend.Node, lease subnet.Lease, synced bool) error {
	if err := a.writeEnv(node, lease); err != nil || !synced {
		return err
	}
	err := a.Settings.Conflist.write()
	if err == nil || !a.Settings.Conflist.usable() {
		a.loop.conflistErr = ""
		return err
	}
	if text := err.Error(); a.loop.conflistErr != text {
		a.loop.conflistErr = text
		a.Log.Error("the CNI config stays as it was", "node", a.Node, "err", err)
		a.event("Warning", "ConflistNotWritten", clip(text))
	}
	return nil
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
	return subnet.WriteEnv(a.Settings.SubnetFile, env)
}
