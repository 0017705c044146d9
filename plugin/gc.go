package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// gc removes the interfaces and reservations of all pods that the runtime does not list as valid. A list that is
// null is empty; no list at all says nothing, and nothing is removed.
func gc(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	if c.attachments == nil {
		return nil
	}
	var valid []types.GCAttachment
	if err := json.Unmarshal(c.attachments, &valid); err != nil {
		return failure(types.ErrInvalidNetworkConfig, `cni.dev/valid-attachments is %s: want a list of {"containerID", "ifname"}`, c.attachments)
	}
	keep := map[owner]bool{}
	for _, v := range valid {
		keep[owner{v.ContainerID, v.IfName}] = true
		keep[owner{v.ContainerID, ""}] = true // host-local's old form
	}
	return c.sweep(ctx, keep)
}

func (c *config) sweep(ctx context.Context, keep map[owner]bool) error {
	leftover := map[owner][]netip.Addr{}
	err := (&store{dir: c.storeDir()}).each(func(a netip.Addr, content []byte) {
		if o := parseOwner(content); len(content) > 0 && !keep[o] {
			leftover[o] = append(leftover[o], a)
		}
	})
	errs := []error{err}
	for o, addrs := range leftover {
		if err := errors.Join(deleteVeth(hostName(o)), releaseAll(ctx, c.storeDir(), o, addrs)); err != nil {
			errs = append(errs, fmt.Errorf("remove what %s left: %w", o.container, err))
		}
	}
	return errors.Join(errs...)
}
