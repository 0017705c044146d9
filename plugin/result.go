package plugin

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// makeResult appends what ADD did to the results of earlier plugins in the chain.
func (a *addRequest) makeResult(context.Context) error {
	r, err := a.conf.previous()
	if err != nil {
		return err
	}
	if r == nil {
		r = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	}
	sandbox := len(r.Interfaces) + 2
	r.Interfaces = append(r.Interfaces,
		&types100.Interface{Name: a.bridge.Name, Mac: a.bridge.HardwareAddr.String(), Mtu: a.bridge.MTU},
		&types100.Interface{Name: a.veth.Host, Mac: a.veth.HostMAC.String(), Mtu: a.veth.MTU},
		&types100.Interface{Name: a.veth.Pod, Mac: a.veth.PodMAC.String(), Mtu: a.veth.MTU, Sandbox: a.pod.Path()})
	for _, g := range a.grants {
		ip := &types100.IPConfig{Interface: &sandbox, Address: *rtnl.IPNet(g.Prefix), Gateway: g.Gateway.AsSlice()}
		r.IPs = append(r.IPs, ip)
	}
	for _, rt := range a.routes {
		r.Routes = append(r.Routes, &types.Route{Dst: *rtnl.IPNet(rt.Dst), GW: net.IP(rt.Via.AsSlice())})
	}
	if !a.conf.dns.IsEmpty() {
		r.DNS = a.conf.dns
	}
	a.result = r
	return nil
}

// encode returns a result as JSON in the config's version.
func (c *config) encode(r *types100.Result) (json.RawMessage, error) {
	converted, err := r.GetAsVersion(c.version)
	if err != nil {
		return nil, err
	}
	return json.Marshal(converted)
}

// decode reads a result in the config's version.
func (c *config) decode(data []byte) (*types100.Result, error) {
	r, err := version.NewResult(c.version, data)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// previous returns the config's prevResult, nil if there is none.
func (c *config) previous() (*types100.Result, error) {
	if c.prevResult == nil {
		return nil, nil
	}
	r, err := c.decode(c.prevResult)
	if err != nil {
		return nil, cnierr.New(types.ErrInvalidNetworkConfig, "prevResult: %v", err)
	}
	return r, nil
}

// addresses returns those of prevResult, as far as it can be read.
func (c *config) addresses() []netip.Addr {
	r, err := c.previous()
	if err != nil || r == nil {
		return nil
	}
	var all []netip.Addr
	for _, ip := range r.IPs {
		all = append(all, rtnl.Addr(ip.Address.IP))
	}
	return all
}
