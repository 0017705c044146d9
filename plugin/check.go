package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// check says what of the pod's network is not as ADD left it. What is there beyond that is another plugin's.
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
		return failure(types.ErrInvalidNetworkConfig, "prevResult is missing: want the result of the pod's ADD")
	}
	p, err := openPod(args.Netns)
	if errors.Is(err, errNoPod) {
		return failure(types.ErrUnknownContainer, "CNI_NETNS %s is not there or not a network namespace: want the pod's", args.Netns)
	}
	if err != nil {
		return err
	}
	defer p.close()
	o := owner{args.ContainerID, args.IfName}
	want, err := c.expected(prev, args)
	if err != nil {
		return err
	}
	have, err := observe(p, o, want)
	if err != nil {
		return fmt.Errorf("look at the pod: %w", err)
	}
	if plan := netstate.Diff(want, have); len(plan) > 0 {
		return failure(types.ErrInternal, "the pod's network is not as ADD left it, delete the pod to get a new one: %s",
			strings.ReplaceAll(strings.TrimSpace(plan.String()), "\n", "; "))
	}
	return c.checkAddons(ctx, caller{o, args.Netns, args.Path, args.Args})
}

// expected is the state that prevResult and the config describe.
func (c *config) expected(prev *types100.Result, args *skel.CmdArgs) (netstate.State, error) {
	in := slices.IndexFunc(prev.Interfaces, func(i *types100.Interface) bool {
		return i.Name == args.IfName && i.Sandbox != ""
	})
	if in < 0 {
		return nil, failure(types.ErrInvalidNetworkConfig, "prevResult has no interface %s in a sandbox: want the result of the pod's ADD", args.IfName)
	}
	s := netstate.NewState(podEnd{Name: args.IfName, MAC: prev.Interfaces[in].Mac, MTU: c.wantedMTU(prev.Interfaces[in]), Up: true})
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") { // and not the bridge or another plugin's device
			s.Add(hostEnd{i.Name, c.bridge, c.wantedMTU(i), c.hairpin, c.isolated, c.checkMAC, true})
		}
	}
	var grants []grant
	for _, ip := range prev.IPs {
		if ip.Interface == nil || *ip.Interface != in {
			continue
		}
		g := grant{prefixOf(&ip.Address), addrOf(ip.Gateway)}
		grants = append(grants, g)
		s.Add(netstate.Addr{Dev: args.IfName, Prefix: g.prefix})
		s.Add(reservation{(&store{dir: c.storeDir()}).path(g.prefix.Addr()), args.ContainerID})
	}
	for _, r := range prev.Routes {
		if o, ok := wantedRoute(r, args.IfName, grants); ok {
			s.Add(o)
		}
	}
	return s, nil
}

// wantedMTU is what ADD's result says, as later plugins may have changed it, or else what ADD would give now; 0
// when neither is known.
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

// wantedRoute is r if it is one through the pod's interface. A route without a gateway goes through that of its
// family, as the bridge plugin has it.
func wantedRoute(r *types.Route, dev string, grants []grant) (netstate.Route, bool) {
	o := netstate.Route{Dst: prefixOf(&r.Dst), Via: addrOf(r.GW), Dev: dev, Metric: r.Priority, Protocol: netstate.Protocol}
	if !o.Via.IsValid() {
		o.Via = gatewayFor(o.Dst, grants)
	}
	if o.Metric == 0 {
		o.Metric = netstate.DefaultMetric(o.Dst.Addr())
	}
	ours := slices.ContainsFunc(grants, func(g grant) bool { return g.prefix.Masked().Contains(o.Via) })
	return o, ours && (r.Table == nil || *r.Table == unix.RT_TABLE_MAIN)
}
