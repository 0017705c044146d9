package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// del removes whatever there is of a pod, in the order link, files, addresses. It needs neither the pod's
// namespace nor the lease nor the agent, can be repeated, and does everything that it can: an error tells the
// runtime that trying again may help.
func del(ctx context.Context, args *skel.CmdArgs) error {
	c, _ := parseConfig(args.StdinData) // a bad value of a key must not keep a pod from going
	o := owner{args.ContainerID, args.IfName}
	err := errors.Join(
		deleteVeth(hostName(o)),
		deleteInPod(args.Netns, args.IfName),
		c.forgetFlannel(o.container),
	)
	rules := dropAddons(ctx, (&store{dir: c.storeDir()}).recordPath(o),
		caller{o, args.Netns, args.Path, args.Args}, c.addons())
	var refused *types.Error
	if errors.As(err, &refused) { // the node's own namespace: somebody mixed things up, touch nothing more
		return err
	}
	if rules != nil { // which may lead to the addresses
		return errors.Join(err, rules)
	}
	if released := releaseAll(ctx, c.storeDir(), o, c.addresses()); released != nil {
		err = errors.Join(err, fmt.Errorf("release the addresses of %s: %w", o.container, released))
	}
	return err
}

// deleteInPod deletes the interface from inside the pod, where it is one that flannel's chain made: then the
// host's end has a name that nobody knows.
func deleteInPod(netns, dev string) error {
	if netns == "" {
		return nil
	}
	p, err := openPod(netns)
	if errors.Is(err, errNoPod) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if _, err := p.nl.do(deleteRequest(dev)); err != nil && !gone(err) {
		return fmt.Errorf("delete %s in the pod: %w", dev, err)
	}
	return nil
}

// forgetFlannel removes the file that flannel's plugin kept for the container.
func (c *config) forgetFlannel(container string) error {
	return absent(os.Remove(filepath.Join(c.flannelDir, container)))
}

// addresses is those of prevResult, as far as it can be read: where to look first.
func (c *config) addresses() []netip.Addr {
	r, err := c.previous()
	if err != nil || r == nil {
		return nil
	}
	var all []netip.Addr
	for _, ip := range r.IPs {
		all = append(all, addrOf(ip.Address.IP))
	}
	return all
}
