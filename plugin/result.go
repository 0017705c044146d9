package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// makeResult is what ADD tells the runtime, after what earlier plugins of the chain told it.
func (a *adding) makeResult(context.Context) error {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if prev, err := a.previous(); err != nil {
		return err
	} else if prev != nil {
		r = prev
	}
	sandbox := len(r.Interfaces) + 2
	r.Interfaces = append(r.Interfaces,
		&types100.Interface{Name: a.bridge.Name, Mac: a.bridge.HardwareAddr.String(), Mtu: a.bridge.MTU},
		&types100.Interface{Name: a.veth.host, Mac: a.veth.hostMAC.String(), Mtu: a.mtu},
		&types100.Interface{Name: a.veth.pod, Mac: a.veth.podMAC.String(), Mtu: a.mtu, Sandbox: a.pod.path})
	for _, g := range a.grants {
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: &sandbox, Address: *ipNet(g.prefix), Gateway: g.gateway.AsSlice()})
	}
	for _, rt := range a.routes {
		r.Routes = append(r.Routes, &types.Route{Dst: *ipNet(rt.dst), GW: net.IP(rt.via.AsSlice())})
	}
	if !a.dns.IsEmpty() {
		r.DNS = a.dns
	}
	a.result = r
	return nil
}

// printable is the result so far, in the config's version.
func (a *adding) printable() (json.RawMessage, error) {
	r, err := a.result.GetAsVersion(a.version)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := r.PrintTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// takeResult makes what another plugin printed the result.
func (a *adding) takeResult(printed []byte) error {
	r, err := version.NewResult(a.version, printed)
	if err == nil {
		a.result, err = types100.NewResultFromResult(r)
	}
	return err
}

// previous is the config's prevResult, nil if there is none.
func (c *config) previous() (*types100.Result, error) {
	if c.prevResult == nil {
		return nil, nil
	}
	prev, err := version.NewResult(c.version, c.prevResult)
	if err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "prevResult: %v", err)
	}
	r, err := types100.NewResultFromResult(prev)
	if err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "prevResult: %v", err)
	}
	if r == nil {
		return nil, fmt.Errorf("prevResult is empty: want a CNI result")
	}
	return r, nil
}
