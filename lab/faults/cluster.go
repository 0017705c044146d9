package faults

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/lab"
)

// onPeer injects into the peer instead.
func onPeer(inject func(context.Context, *Target) error) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		swapped := *v
		swapped.Node, swapped.Peer = v.Peer, v.Node
		return inject(ctx, &swapped)
	}
}

const (
	movedAddress = "192.168.33.222"
	hijacker     = "usurper"
)

// clusterFaults are what happens to other nodes, to the store and to the agent itself.
var clusterFaults = []Fault{
	{
		Name:        "peer-moves",
		Description: "the peer's underlay address changes",
		Inject:      movePeer(movedAddress),
		Healed:      peerIsAt(movedAddress),
	},
	{Name: "peer-moves-back", Description: "and changes back", Inject: moveBack, Healed: peerIsBack},
	{Name: "subnet-usurped", Description: "another node claims the peer's subnet", Store: lab.Kube, Lossless: true,
		Inject: func(ctx context.Context, v *Target) error {
			return v.Lab.Hijack(ctx, hijacker, v.Peer, netip.MustParseAddr("192.168.33.249"))
		}},
	{Name: "usurper-leaves", Description: "and is deleted", Store: lab.Kube, Lossless: true,
		Inject: func(ctx context.Context, v *Target) error { return v.Lab.DeleteNode(ctx, hijacker) }},
	{Name: "annotation-lost", Description: "the peer's annotations are deleted", Store: lab.Kube,
		Inject: func(ctx context.Context, v *Target) error {
			return v.Lab.Annotate(ctx, v.Peer.Name, map[string]string{"flannel.alpha.coreos.com/backend-data": "",
				"flannel.alpha.coreos.com/public-ip": "", "flannel.alpha.coreos.com/kube-subnet-manager": ""})
		}},
	{Name: "agent-killed", Description: "the agent is killed and started again", Lossless: true, Inject: killAgent},
	{Name: "agent-restarted", Description: "the agent is stopped and started again", Lossless: true,
		Inject: func(ctx context.Context, v *Target) error { return v.Node.RestartAgent(ctx) }},
	{Name: "store-restarted", Description: "the store is down for two seconds", Lossless: true, Inject: restartStore},
}

// movePeer gives the peer another underlay address instead of its own.
func movePeer(to string) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		return move(ctx, v, v.Address(v.Peer.Underlay()).String(), to)
	}
}

func moveBack(ctx context.Context, v *Target) error {
	return move(ctx, v, movedAddress, v.Address(v.Peer.Underlay()).String())
}

func move(ctx context.Context, v *Target, from, to string) error {
	if err := run(ctx, v.Peer, "ip addr del %s/24 dev %s", from, v.Device); err != nil {
		return err
	}
	return run(ctx, v.Peer, "ip addr add %s/24 dev %s", to, v.Device)
}

// peerIsAt reports whether the target sends the peer's packets to an address.
func peerIsAt(addr string) func(context.Context, *Target) (bool, error) {
	return func(ctx context.Context, v *Target) (bool, error) {
		var out string
		var err error
		if v.Lab.Spec().Backend == "vxlan" {
			out, err = v.Node.Exec(ctx, "bridge", "fdb", "show", "dev", v.Overlay)
		} else {
			out, err = v.Node.Exec(ctx, "ip", "route", "show", v.Subnet(v.Peer).String())
		}
		return strings.Contains(out, " "+addr+" "), err
	}
}

func peerIsBack(ctx context.Context, v *Target) (bool, error) {
	return peerIsAt(v.Address(v.Peer.Underlay()).String())(ctx, v)
}

func killAgent(ctx context.Context, v *Target) error {
	if err := v.Node.KillAgent(); err != nil {
		return err
	}
	return v.Node.StartAgent(ctx)
}

func restartStore(ctx context.Context, v *Target) error {
	if err := v.Lab.StopStore(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait with the store down: %w", ctx.Err())
	case <-time.After(2 * time.Second):
	}
	return v.Lab.StartStore(ctx)
}
