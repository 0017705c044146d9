package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/delegate"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
)

// gc removes the interfaces and reservations of all pods that the runtime does not list as valid. A list that
// is null is empty; without a list nothing is removed.
func gc(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil || c.attachments == nil {
		return err
	}
	var valid []types.GCAttachment
	if err := json.Unmarshal(c.attachments, &valid); err != nil {
		return cnierr.New(types.ErrInvalidNetworkConfig,
			`cni.dev/valid-attachments is %s: want a list of {"containerID", "ifname"}`, c.attachments)
	}
	keep := map[ipam.Owner]bool{}
	for _, v := range valid {
		keep[ipam.Owner{Container: v.ContainerID, Dev: v.IfName}] = true
		keep[ipam.Owner{Container: v.ContainerID}] = true // host-local's old form
	}
	allocations, err := c.store().Allocations()
	r := Remover{Path: args.Path}
	errs := []error{err}
	for _, a := range allocations {
		if !keep[a.Owner] {
			errs = append(errs, r.Remove(ctx, a))
		}
	}
	return errors.Join(errs...)
}

// Remover removes what pods that are gone left. It is made for one round over the allocations.
type Remover struct {
	Path string // where portmap and bandwidth are, in the form of PATH

	ports delegate.HostPorts
}

// Remove removes all of an allocation as DEL does: the veth pair, what portmap and bandwidth did, and the
// reservations that are still this owner's. An address is not given back while any rule leads a port of the
// node to it.
func (r *Remover) Remove(ctx context.Context, a ipam.Allocation) error {
	pod := delegate.Pod{Owner: a.Owner, Store: a.Store, Path: r.Path}
	err := deleteVeth(a.Owner)
	if err == nil {
		err = pod.Del(ctx, nil)
	}
	if err == nil {
		err = r.ports.Remove(ctx, pod, a.Addrs)
	}
	if err == nil {
		_, err = a.Store.Release(ctx, a.Owner, a.Addrs)
	}
	if err != nil {
		return fmt.Errorf("remove what %s left in %s: %w", strings.TrimSpace(a.Owner.Container+" "+a.Owner.Dev), a.Store, err)
	}
	return nil
}
