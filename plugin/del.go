package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// del removes whatever there is of a pod, in the order link, files, rules, addresses. It needs neither the
// pod's namespace nor the lease nor the agent, can be repeated, and does everything that it can: an error
// tells the runtime that trying again may help.
func del(ctx context.Context, args *skel.CmdArgs) error {
	c, _ := parseConfig(args.StdinData) // a bad value of a key must not keep a pod from going
	o := ownerIn(args)
	err := errors.Join(deleteVeth(o), deleteInPod(args.Netns, args.IfName),
		ipam.Absent(os.Remove(filepath.Join(c.flannelDir, o.Container)))) // that flannel's plugin kept for the container
	rules := c.delegatePod(args).Del(ctx, c.plugins)
	if cnierr.Code(err) != 0 { // the node's own namespace: touch nothing more
		return err
	}
	if rules != nil { // which may lead to the addresses
		return errors.Join(err, rules)
	}
	released, releaseErr := c.store().Release(ctx, o, c.addresses())
	if releaseErr != nil {
		err = errors.Join(err, fmt.Errorf("release the addresses of %s: %w", o.Container, releaseErr))
	}
	c.announceGone(ctx, o, args.Args, released)
	return err
}

func deleteVeth(o ipam.Owner) error {
	n, err := wire.OpenNode()
	if err != nil {
		return err
	}
	defer n.Close()
	return n.DeleteLink(wire.HostEnd(o))
}

// deleteInPod deletes the interface from inside the pod, where it is one that flannel's chain made: then the
// host's end has a name that nobody knows.
func deleteInPod(netns, dev string) error {
	if netns == "" {
		return nil
	}
	p, err := wire.OpenPod(netns)
	if cnierr.Code(err) == types.ErrUnknownContainer {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	return p.DeleteLink(dev)
}
