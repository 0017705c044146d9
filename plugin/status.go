package plugin

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/wire"
)

// status returns an error if no pod can be added to this node, and none will be until somebody mends it: with code 50, or 51
// when the pods that are there are cut off too. It looks at the lease and the bridge only. Runtimes report its error as the
// whole node's network not being ready, and the cluster then evicts the node's pods: what keeps one more pod out, as a range
// without a free address, is no reason for that, and ADD says it.
func status(_ context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	bridge := wire.Bridge{Name: c.bridge}
	n, err := c.network()
	if err == nil {
		bridge = n.bridge
	}
	if code := cnierr.Code(err); err != nil && code != types.ErrTryAgainLater && code != types.ErrPluginNotAvailable {
		return err
	}
	if cut := bridge.CutOff(); cut != "" {
		return cnierr.New(types.ErrLimitedConnectivity, "%s; the agent (twilld) mends it, look at its log", cut)
	}
	if err != nil {
		return cnierr.New(types.ErrPluginNotAvailable, "%v", err)
	}
	return nil
}
