package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/lab"
)

var cloudOnly = []string{"aws-vpc"}

// cloudFaults are what goes wrong in a cloud's network. The agent looks there every ten minutes; one that is started again
// looks at once.
var cloudFaults = []Fault{
	{Name: "cloud-route-deleted", Finding: cloud.RouteMissing, Backends: cloudOnly, KeepAgent: true, Running: true,
		Description: "somebody deletes the cloud's route to the node's pods, and the API refuses to write it",
		Inject: cloudy(cloud.RouteMissing, fake.Faults{Busy: true}, func(ctx context.Context, v *Target) error {
			return v.editRoutes(ctx, v.Node, "")
		}), Undo: clearSky},
	{Name: "cloud-route-taken", Finding: cloud.RouteWrong, Backends: cloudOnly, KeepAgent: true, Running: true,
		Description: "somebody keeps writing the cloud's route to the node's pods",
		Inject: cloudy(cloud.RouteWrong, fake.Faults{Thief: "eni-thief"}, func(ctx context.Context, v *Target) error {
			return v.editRoutes(ctx, v.Node, "eni-thief")
		}), Undo: clearSky},
	{Name: "cloud-peer-route-deleted", Finding: cloud.PeerUnrouted, Backends: cloudOnly, KeepAgent: true, Running: true,
		Description: "the cloud has no route to a peer, whose agent does not run",
		Inject: cloudy(cloud.PeerUnrouted, fake.Faults{}, func(ctx context.Context, v *Target) error {
			return errors.Join(v.Peer.KillAgent(), v.editRoutes(ctx, v.Peer, ""))
		}), Undo: clearSky},
	{Name: "cloud-table-full", Finding: cloud.TableFull, Backends: cloudOnly, KeepAgent: true, Running: true,
		Description: "the cloud's routing table is full before the node's route is in it",
		Inject: cloudy(cloud.TableFull, fake.Faults{Full: 1}, func(ctx context.Context, v *Target) error {
			return v.editRoutes(ctx, v.Node, "")
		}), Undo: clearSky},
	{Name: "cloud-denied", Finding: cloud.Denied, Backends: cloudOnly, KeepAgent: true, Running: true,
		Description: "the node's role may not write routes any more",
		Inject: cloudy(cloud.Denied, fake.Faults{Denied: []string{"ec2:CreateRoute"}}, func(ctx context.Context, v *Target) error {
			return v.editRoutes(ctx, v.Node, "")
		}), Undo: clearSky},
	{Name: "cloud-forwarding-off", Finding: cloud.ForwardingOff, Backends: cloudOnly, KeepAgent: true, Running: true,
		Description: "the cloud's source/destination check is on, and the node's role may not turn it off",
		Inject: cloudy(cloud.ForwardingOff, fake.Faults{Denied: []string{"ec2:ModifyNetworkInterfaceAttribute"}},
			func(ctx context.Context, v *Target) error { return v.Node.Forward(ctx, false) }), Undo: clearSky},
	{Name: "cloud-table-unlisted", Finding: cloud.Unlisted, Backends: cloudOnly, KeepAgent: true, Running: true, Lossless: true,
		Description: "a subnet of the cloud's network gets a routing table of its own",
		Inject: cloudy(cloud.Unlisted, fake.Faults{}, func(ctx context.Context, v *Target) error {
			return v.Lab.SetCloudTables(ctx, fake.Table{ID: "rtb-other", Subnets: []string{"subnet-other"}})
		}), Undo: clearSky},
	{Name: "cloud-overlap", Finding: cloud.Overlap, Backends: cloudOnly, KeepAgent: true, Running: true, Lossless: true,
		Description: "the cloud's network gets a block of addresses that has the cluster's in it",
		Inject: cloudy(cloud.Overlap, fake.Faults{}, func(ctx context.Context, v *Target) error {
			return v.Lab.SetCloudBlock(ctx, netip.MustParsePrefix("10.0.0.0/8"))
		}), Undo: clearSky},
	{Name: "cloud-egress", Finding: "cloud-egress", Backends: cloudOnly,
		Description: "the node has a route that leads the cluster's network through another device",
		Inject:      script("ip link add vpn0 up type veth peer name vpn1", "ip link set vpn1 up", "ip route add 10.244.0.0/16 dev vpn0 proto static"),
		Undo:        script("ip link del vpn0")},
}

// cloudy breaks the cloud, starts the agent again, and returns when it says so in /status.
func cloudy(finding string, f fake.Faults, damage func(context.Context, *Target) error) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		if err := errors.Join(v.Node.KillAgent(), v.Lab.BreakCloud(ctx, f), damage(ctx, v), v.Node.StartAgent(ctx)); err != nil {
			return err
		}
		return await(ctx, "the agent to report "+finding, func() (bool, error) {
			said, err := v.Node.Ask(ctx, "/status")
			return strings.Contains(said, `"`+finding+`"`), err
		})
	}
}

// clearSky mends the cloud. Agents write their routes when they are started again.
func clearSky(ctx context.Context, v *Target) error {
	err := errors.Join(v.Lab.BreakCloud(ctx, fake.Faults{}), v.Lab.SetCloudTables(ctx), v.Lab.SetCloudBlock(ctx, netip.Prefix{}),
		v.editRoutes(ctx, v.Node, ""), v.Peer.StartAgent(ctx))
	return errors.Join(err, await(ctx, "the routes of "+v.Peer.Name, func() (bool, error) {
		routes, err := v.Lab.CloudRoutes(ctx)
		for _, r := range routes {
			if r.Dst == v.Subnet(v.Peer) {
				return true, err
			}
		}
		return false, err
	}))
}

// editRoutes deletes the cloud's routes to a node's pods, or gives them another target.
func (v *Target) editRoutes(ctx context.Context, n *lab.Node, target string) error {
	all, err := v.Lab.CloudRoutes(ctx)
	if err != nil {
		return err
	}
	var kept []cloud.Route
	for _, r := range all {
		if r.Dst == v.Subnet(n) {
			if target == "" {
				continue
			}
			r.Target = target
		}
		kept = append(kept, r)
	}
	return v.Lab.SetCloudRoutes(ctx, kept)
}

// cloudLimit is how long the agent may take to report what it sees only when it looks several times.
const cloudLimit = 4 * time.Minute

// await returns when f says so.
func await(ctx context.Context, what string, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, cloudLimit)
	defer cancel()
	for {
		done, err := f()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
