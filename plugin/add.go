package plugin

import (
	"context"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/delegate"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// addRequest is one ADD under way.
type addRequest struct {
	conf      *config
	net       *network
	owner     ipam.Owner
	pod       *wire.Pod
	node      *wire.Node
	delegated delegate.Pod // for portmap and bandwidth

	grants []ipam.Grant
	routes []wire.Route
	bridge *netlink.Bridge
	veth   wire.Veth
	result *types100.Result
}

func add(ctx context.Context, args *skel.CmdArgs) error {
	a, err := begin(args)
	if err != nil {
		return err
	}
	defer a.close()
	// Only ADD warns: runtimes copy a successful plugin's standard error into their own log, and one line a
	// pod is enough to be found there.
	for _, w := range a.conf.warnings {
		fmt.Fprintln(os.Stderr, "twill: network", a.conf.name+":", w)
	}
	if err := run(ctx, a.steps()); err != nil {
		return err
	}
	if err := a.announce(ctx, args.Args); err != nil {
		fmt.Fprintf(os.Stderr, "twill: network %s: network policies of the pod: %v\n", a.conf.name, err)
	}
	return nil
}

// begin reads everything that ADD needs and changes nothing.
func begin(args *skel.CmdArgs) (*addRequest, error) {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return nil, err
	}
	if err := c.readEnvironment(args.Args); err != nil {
		return nil, err
	}
	n, err := c.network()
	if err != nil {
		return nil, err
	}
	p, err := wire.OpenPod(args.Netns)
	if err != nil {
		return nil, err
	}
	a := &addRequest{conf: c, net: n, owner: ownerIn(args), pod: p, delegated: c.delegatePod(args)}
	if err := a.vacant(); err != nil {
		p.Close()
		return nil, err
	}
	if a.node, err = wire.OpenNode(); err != nil {
		p.Close()
		return nil, err
	}
	return a, nil
}

func (a *addRequest) close() {
	a.pod.Close()
	a.node.Close()
}

func ownerIn(args *skel.CmdArgs) ipam.Owner {
	return ipam.Owner{Container: args.ContainerID, Dev: args.IfName}
}

func (c *config) delegatePod(args *skel.CmdArgs) delegate.Pod {
	return delegate.Pod{Owner: ownerIn(args), Store: c.store(), Netns: args.Netns, Path: args.Path, Args: args.Args}
}

// vacant returns an error if the pod has the interface already, as the specification wants it.
func (a *addRequest) vacant() error {
	has, err := a.pod.Has(a.owner.Dev)
	if err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	if has {
		return cnierr.New(types.ErrInvalidEnvironmentVariables, "CNI_IFNAME %s: the pod %s has that interface already, "+
			"want a DEL before another ADD", a.owner.Dev, a.owner.Container)
	}
	return nil
}

func (a *addRequest) steps() []step {
	return []step{
		{do: a.reserve, undo: a.release},
		{do: a.findBridge}, // never undone: other pods may be on it already
		{do: a.attach, undo: func() error { return a.node.DeleteLink(a.veth.Host) }},
		{do: a.lockPort},
		{do: func(context.Context) error { return a.pod.Configure(a.owner.Dev, a.grants, a.routes) }},
		{do: a.makeResult},
		{do: a.runPlugins, undo: func() error { return a.delegated.Del(context.Background(), nil) }},
		{do: a.print},
	}
}

func (a *addRequest) reserve(ctx context.Context) (err error) {
	inUse, err := a.node.InUse(a.conf.store())
	if err != nil {
		return err
	}
	a.grants, err = a.conf.store().Allocate(ctx, a.owner, a.net.sets, a.conf.wanted, inUse)
	a.routes = a.net.podRoutes(a.grants, a.conf.defaultGateway)
	a.veth = wire.NewVeth(a.owner, a.grants, a.net.bridge.MTU)
	if a.conf.mac != (netstate.MAC{}) {
		a.veth.PodMAC = a.conf.mac
	}
	return err
}

func (a *addRequest) release() error {
	_, err := a.conf.store().Release(context.Background(), a.owner, nil)
	return err
}

func (a *addRequest) findBridge(ctx context.Context) (err error) {
	a.bridge, err = a.net.bridge.Ensure(ctx, a.node, a.conf.store())
	return err
}

func (a *addRequest) attach(context.Context) error {
	return a.node.Attach(a.veth, a.pod, a.bridge, a.conf.port)
}

func (a *addRequest) lockPort(context.Context) error {
	if !a.conf.port.CheckMAC {
		return nil
	}
	return a.node.LockPort(a.veth)
}

// runPlugins runs the plugins that this pod needs beside this one; the last one's result is the pod's.
func (a *addRequest) runPlugins(ctx context.Context) error {
	if len(a.conf.plugins) == 0 {
		return nil
	}
	result, err := a.conf.encode(a.result)
	if err != nil {
		return err
	}
	if result, err = a.delegated.Add(ctx, a.conf.plugins, result); err != nil {
		return err
	}
	if a.result, err = a.conf.decode(result); err != nil {
		return cnierr.Join(err, a.delegated.Del(context.Background(), nil))
	}
	return nil
}

// print is the last step: a runtime that is not there any more to read the result does not know of the pod.
func (a *addRequest) print(context.Context) error {
	if err := types.PrintResult(a.result, a.conf.version); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
