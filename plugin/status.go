package plugin

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/wire"
)

// status returns an error if an ADD would not succeed now or give a network that does not work: with code 50,
// or 51 when the pods that are there are cut off too.
func status(_ context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	bridge := wire.Bridge{Name: c.bridge}
	n, err := c.network()
	if err == nil {
		bridge = n.bridge
		err = c.store().Room(n.sets)
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
