package plugin

import (
	"context"
	"fmt"
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
)

// check returns an error if something of the pod's network is not as ADD left it. What was added since is
// ignored, and what a later plugin may have altered without saying so in the result.
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
	if err != nil {
		return err
	}
	defer p.Close()
	n, err := wire.OpenNode()
	if err != nil {
		return err
	}
	defer n.Close()
	want, err := c.expected(prev, args)
	if err != nil {
		return err
	}
	have, err := wire.Observe(n, p, args.IfName, want)
	if err != nil {
		return fmt.Errorf("look at the pod: %w", err)
	}
	differences := slices.Collect(strings.Lines(netstate.Diff(want, have).String()))
	for _, o := range want.Sorted() {
		if a, ok := o.(netstate.Addr); ok && !c.store().Has(ownerIn(args), a.Prefix.Addr()) {
			differences = append(differences,
				fmt.Sprintf("+ reservation %s of %s in %s", a.Prefix.Addr(), args.ContainerID, c.store()))
		}
	}
	if len(differences) > 0 {
		return cnierr.New(types.ErrInternal, "the pod's network is not as ADD left it, delete the pod to get a new one: %s",
			strings.ReplaceAll(strings.TrimSpace(strings.Join(differences, "")), "\n", "; "))
	}
	return c.delegatePod(args).Check(ctx, c.plugins, c.prevResult)
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
	pod := prev.Interfaces[in]
	// Nothing of its MTU: a later plugin, such as tuning, alters it without a word in the result.
	s := netstate.NewState(wire.End{Name: args.IfName, MAC: pod.Mac, Up: true})
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") { // and not the bridge or another plugin's device
			s.Add(wire.End{Name: i.Name, Master: c.bridge, Port: c.port, MTU: i.Mtu, Up: true})
		}
	}
	var grants []ipam.Grant
	for _, ip := range prev.IPs {
		if ip.Interface == nil || *ip.Interface != in {
			continue
		}
		g := ipam.Grant{Prefix: rtnl.Prefix(&ip.Address), Gateway: rtnl.Addr(ip.Gateway)}
		grants = append(grants, g)
		s.Add(netstate.Addr{Dev: args.IfName, Prefix: g.Prefix})
	}
	for _, r := range prev.Routes {
		if o, ok := wantedRoute(r, args.IfName, grants); ok {
			s.Add(o)
		}
	}
	return s, nil
}

// wantedRoute returns r and whether it is one through the pod's interface. A route without a gateway goes
// through that of its family, as the bridge plugin has it.
func wantedRoute(r *types.Route, dev string, grants []ipam.Grant) (netstate.Route, bool) {
	o := netstate.Route{Dst: rtnl.Prefix(&r.Dst), Via: rtnl.Addr(r.GW), Dev: dev, Metric: r.Priority,
		Protocol: netstate.Protocol}
	if !o.Via.IsValid() {
		o.Via = gatewayFor(o.Dst, grants)
	}
	if o.Metric == 0 {
		o.Metric = netstate.DefaultMetric(o.Dst.Addr())
	}
	ours := slices.ContainsFunc(grants, func(g ipam.Grant) bool { return g.Prefix.Masked().Contains(o.Via) })
	return o, ours && (r.Table == nil || *r.Table == unix.RT_TABLE_MAIN)
}
