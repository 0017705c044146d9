package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
	"github.com/twill-net/twill/subnet"
)

// check returns what of the pod's network is not as ADD left it. What is there beyond that is another plugin's.
func check(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	prev, err := c.previous()
	if err != nil {
		return err
	}
	if prev == nil {
		return cnierr.New(types.ErrInvalidNetworkConfig, "prevResult is missing: want the result of the pod's ADD")
	}
	p, err := wire.OpenPod(args.Netns)
	if errors.Is(err, wire.ErrNoPod) {
		return cnierr.New(types.ErrUnknownContainer, "CNI_NETNS %s is not there or not a network namespace: want the pod's",
			args.Netns)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	want, err := c.expected(prev, args)
	if err != nil {
		return err
	}
	have, err := observe(p, ownerIn(args), want)
	if err != nil {
		return fmt.Errorf("look at the pod: %w", err)
	}
	if plan := netstate.Diff(want, have); len(plan) > 0 {
		return cnierr.New(types.ErrInternal, "the pod's network is not as ADD left it, delete the pod to get a new one: %s",
			strings.ReplaceAll(strings.TrimSpace(plan.String()), "\n", "; "))
	}
	return c.delegatePod(args).Check(ctx, c.plugins, c.prevResult)
}

// reservation is an address's file in the store, as a netstate object.
type reservation struct{ File, Owner string }

// Key implements netstate.Object; of the kind only that nothing depends on it matters.
func (r reservation) Key() netstate.Key { return netstate.Key{Kind: netstate.KindChain, Name: r.File} }

func (r reservation) String() string { return "reservation " + r.File + " of " + r.Owner }

// observe returns as much of the kernel's and the store's state as want is about.
func observe(p *wire.Pod, o ipam.Owner, want netstate.State) (netstate.State, error) {
	n, err := wire.OpenNode()
	if err != nil {
		return nil, err
	}
	defer n.Close()
	have, err := wire.Observe(n, p, o.Dev, want)
	if err != nil {
		return nil, err
	}
	for _, w := range want {
		r, ok := w.(reservation)
		if !ok {
			continue
		}
		content, err := os.ReadFile(r.File)
		switch {
		case ipam.Absent(err) != nil:
			return nil, err
		case o.Owns(content):
			have.Add(r)
		case err == nil:
			container, _, _ := strings.Cut(string(content), "\r\n")
			have.Add(reservation{r.File, container})
		}
	}
	return have, nil
}

// expected returns the state that prevResult and the config describe.
func (c *config) expected(prev *types100.Result, args *skel.CmdArgs) (netstate.State, error) {
	in := slices.IndexFunc(prev.Interfaces, func(i *types100.Interface) bool {
		return i.Name == args.IfName && i.Sandbox != ""
	})
	if in < 0 {
		return nil, cnierr.New(types.ErrInvalidNetworkConfig, "prevResult has no interface %s in a sandbox: "+
			"want the result of the pod's ADD", args.IfName)
	}
	s := netstate.NewState(wire.End{Name: args.IfName, MAC: prev.Interfaces[in].Mac, MTU: c.wantedMTU(prev.Interfaces[in]), Up: true})
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") { // and not the bridge or another plugin's device
			s.Add(wire.End{Name: i.Name, Master: c.bridge, Port: c.port, MTU: c.wantedMTU(i), Up: true})
		}
	}
	var grants []ipam.Grant
	for _, ip := range prev.IPs {
		if ip.Interface == nil || *ip.Interface != in {
			continue
		}
		g := ipam.Grant{Prefix: rtnl.Prefix(&ip.Address), Gateway: rtnl.Addr(ip.Gateway)}
		grants = append(grants, g)
		s.Add(netstate.Addr{Dev: args.IfName, Prefix: g.Prefix}, reservation{c.store().File(g.Prefix.Addr()), args.ContainerID})
	}
	for _, r := range prev.Routes {
		if o, ok := wantedRoute(r, args.IfName, grants); ok {
			s.Add(o)
		}
	}
	return s, nil
}

// wantedMTU returns what ADD's result says, as later plugins may have changed it, or else what ADD would give now; 0 when
// neither is known.
func (c *config) wantedMTU(i *types100.Interface) int {
	if i.Mtu != 0 {
		return i.Mtu
	}
	if c.mtu != 0 {
		return c.mtu
	}
	env, _ := subnet.ReadEnv(c.subnetFile)
	return env.MTU
}

// wantedRoute returns r and whether it is one through the pod's interface. A route without a gateway goes through that of its
// family, as the bridge plugin has it.
func wantedRoute(r *types.Route, dev string, grants []ipam.Grant) (netstate.Route, bool) {
	o := netstate.Route{Dst: rtnl.Prefix(&r.Dst), Via: rtnl.Addr(r.GW), Dev: dev, Metric: r.Priority, Protocol: netstate.Protocol}
	if !o.Via.IsValid() {
		o.Via = gatewayFor(o.Dst, grants)
	}
	if o.Metric == 0 {
		o.Metric = netstate.DefaultMetric(o.Dst.Addr())
	}
	ours := slices.ContainsFunc(grants, func(g ipam.Grant) bool { return g.Prefix.Masked().Contains(o.Via) })
	return o, ours && (r.Table == nil || *r.Table == unix.RT_TABLE_MAIN)
}
