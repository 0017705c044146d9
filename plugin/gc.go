package plugin

import (
	"context"
	"encoding/json"
	"errors"

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
	holdings, err := Holdings(c.storeDir())
	r := Remover{Path: args.Path}
	errs := []error{err}
	for _, h := range holdings {
		if !keep[owner{h.Container, h.Dev}] {
			errs = append(errs, r.Remove(ctx, h))
		}
	}
	return errors.Join(errs...)
}
