package plugin

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/twill-net/twill/netstate/rtnl"
)

// ipamMain makes the test binary an IPAM plugin over the allocator of this package, so that host-local's own
// specs can run against it.
func ipamMain() int {
	funcs := skel.CNIFuncs{Add: ipamAdd, Del: func(args *skel.CmdArgs) error {
		c, _ := parseConfig(args.StdinData)
		_, err := c.store().Release(context.Background(), ownerIn(args), nil)
		return err
	}}
	if e := skel.PluginMainFuncsWithError(funcs, version.All, "a test"); e != nil {
		_ = e.Print()
		return 1
	}
	return 0
}

func ipamAdd(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err == nil {
		err = c.readEnvironment(args.Args)
	}
	if err != nil {
		return err
	}
	grants, err := c.store().Allocate(context.Background(), ownerIn(args), c.ranges, c.wanted, nil)
	if err != nil {
		return err
	}
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: c.dns}
	for _, g := range grants {
		r.IPs = append(r.IPs, &types100.IPConfig{Address: *rtnl.IPNet(g.Prefix), Gateway: g.Gateway.AsSlice()})
	}
	for _, rt := range c.routes {
		r.Routes = append(r.Routes, &types.Route{Dst: *rtnl.IPNet(rt.Dst), GW: rt.Via.AsSlice()})
	}
	return types.PrintResult(r, c.version)
}
