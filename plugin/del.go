package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

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
	err := errors.Join(c.deleteLinks(o, args.Netns), c.forget(o.Container))
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

// forget removes the file that flannel's plugin kept for a container. In a user namespace, as that of a lab without root, the
// machine's directory may be one that only root can look into: nothing there is of a pod of this plugin's.
func (c *config) forget(container string) error {
	err := ipam.Remove(filepath.Join(c.flannelDir, container))
	if errors.Is(err, unix.EACCES) {
		return nil
	}
	return err
}

// deleteLinks deletes the pod's veth pair, from the node and, where flannel's chain made it, from inside the pod.
func (c *config) deleteLinks(o ipam.Owner, netns string) error {
	n, err := wire.OpenNode()
	if err != nil {
		return err
	}
	defer n.Close()
	return errors.Join(n.DeleteLink(wire.HostEnd(o)), c.deleteInPod(n, o, netns))
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
func (c *config) deleteInPod(n *wire.Node, o ipam.Owner, netns string) error {
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
	a, there, err := p.Attachment(o.Dev)
	if !there || err != nil {
		return err
	}
	if others, err := c.isOthers(n, o, a); others || err != nil {
		return err
	}
	return p.DeleteLink(o.Dev)
}

// isOthers reports whether an interface belongs to another pod than o: CNI_NETNS can be /proc/PID/ns/net, and the process
// another pod's by now. An interface of Twill's that is still there is not o's, and neither is one whose address another
// pod has.
func (c *config) isOthers(n *wire.Node, o ipam.Owner, a wire.Attachment) (bool, error) {
	for _, addr := range a.Addrs {
		if owner, reserved := c.store().OwnerOf(addr); reserved && !o.Is(owner) {
			return true, nil
		}
	}
	if a.Peer == 0 {
		return false, nil
	}
	return n.IsPort(a.Peer)
}
