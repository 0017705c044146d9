package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/netstate"
)

// adding is one ADD under way.
type adding struct {
	*network
	owner  owner
	pod    *pod
	host   *rtnl
	bridge *netlink.Bridge
	grants []grant
	routes []route
	veth   veth
	result *types100.Result

	cniPath, cniArgs string
}

func add(ctx context.Context, args *skel.CmdArgs) error {
	a, err := begin(args)
	if err != nil {
		return err
	}
	defer a.pod.close()
	defer a.host.close()
	// Only ADD warns: runtimes copy a successful plugin's standard error into their own log, and one line a pod
	// is enough to be found there.
	for _, w := range a.warnings {
		fmt.Fprintln(os.Stderr, "twill: network", a.name+":", w)
	}
	return run(ctx, a.steps())
}

// begin reads everything that ADD needs and changes nothing.
func begin(args *skel.CmdArgs) (*adding, error) {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return nil, err
	}
	if err := c.fromEnvironment(args.Args); err != nil {
		return nil, err
	}
	n, err := newNetwork(c)
	if err != nil {
		return nil, err
	}
	p, err := openPod(args.Netns)
	if errors.Is(err, errNoPod) {
		return nil, failure(types.ErrUnknownContainer, "CNI_NETNS %s is not there or not a network namespace: want a pod's", args.Netns)
	}
	if err != nil {
		return nil, err
	}
	a := &adding{network: n, owner: owner{args.ContainerID, args.IfName}, pod: p, cniPath: args.Path, cniArgs: args.Args}
	if err := a.vacant(); err != nil {
		p.close()
		return nil, err
	}
	if a.host, err = dialRTNL(); err != nil {
		p.close()
		return nil, err
	}
	return a, nil
}

// vacant says that the pod does not have the interface yet; the specification wants an error if it does.
func (a *adding) vacant() error {
	link, err := a.pod.nl.link(a.owner.dev)
	if err != nil {
		return fmt.Errorf("look for %s in the pod: %w", a.owner.dev, err)
	}
	if link != nil {
		return failure(types.ErrInvalidEnvironmentVariables, "CNI_IFNAME %s: the pod %s has that interface already, want a DEL before another ADD",
			a.owner.dev, a.owner.container)
	}
	return nil
}

func (a *adding) steps() []step {
	return []step{
		{do: a.reserve, undo: func() error { return free(a.storeDir(), a.owner, a.grants) }},
		{do: a.findBridge}, // never undone: other pods may be on it already
		{do: a.plug, undo: func() error { return deleteVeth(a.veth.host) }},
		{do: a.lockPort},
		{do: func(context.Context) error { return a.pod.configure(a.owner.dev, a.grants, a.routes) }},
		{do: a.makeResult},
		{do: a.addAddons, undo: a.undoAddons},
		{do: a.print},
	}
}

func (a *adding) reserve(ctx context.Context) (err error) {
	a.grants, err = request{a.sets, a.wanted}.allocate(ctx, a.storeDir(), a.owner)
	a.routes = a.podRoutes(a.grants)
	a.veth = newVeth(a.owner, a.grants, a.mtu)
	if a.mac != (netstate.MAC{}) {
		a.veth.podMAC = a.mac
	}
	return err
}

func (a *adding) findBridge(ctx context.Context) (err error) {
	a.bridge, err = ensureBridge(ctx, a.host, a.network)
	return err
}

// plug makes the pair and sets up its port of the bridge, in one write.
func (a *adding) plug(context.Context) error {
	requests := []*nl.NetlinkRequest{a.veth.request(a.bridge.Index, int(a.pod.ns))}
	if p := a.port(); p.special() {
		requests = append(requests, p.request())
	}
	failed, err := a.host.do(requests...)
	switch {
	case err == nil:
		return nil
	case failed == 0:
		return fmt.Errorf("make veth pair %s and %s of mtu %d: %w", a.veth.host, a.veth.pod, a.veth.mtu, err)
	}
	return withRollback(fmt.Errorf("set up the bridge's port %s: %w", a.veth.host, err), deleteVeth(a.veth.host))
}

func (a *adding) lockPort(context.Context) error {
	if !a.checkMAC {
		return nil
	}
	return a.port().lock(a.host, a.veth.podMAC)
}

func (a *adding) port() port { return port{a.veth.host, a.hairpin, a.isolated, a.checkMAC} }

func (a *adding) undoAddons() error {
	if len(a.addons()) == 0 {
		return nil
	}
	file := (&store{dir: a.storeDir()}).recordPath(a.owner)
	return dropAddons(context.Background(), file, caller{a.owner, a.pod.path, a.cniPath, a.cniArgs}, nil)
}

// print is the last step: a runtime that is not there any more to read the result does not know of the pod.
func (a *adding) print(context.Context) error {
	if err := types.PrintResult(a.result, a.version); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
