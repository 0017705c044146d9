package e2e

import (
	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// path is a way to carry packets between nodes.
type path struct {
	name string
	spec lab.Spec
	only []string // address families; all if there are none
}

var paths = []path{
	{name: "vxlan", spec: lab.Spec{Backend: "vxlan", Nodes: 3}},
	{name: "direct", spec: lab.Spec{Backend: "vxlan", DirectRouting: true, Underlay: lab.L3, Nodes: 4}}, // two nodes a segment
	{name: "hostgw", spec: lab.Spec{Backend: "host-gw", Nodes: 3}},
	{name: "udp", spec: lab.Spec{Backend: "udp", Nodes: 3}},
	{name: "wireguard", spec: lab.Spec{Backend: "wireguard", Nodes: 3}},
}

func (p path) families() []string {
	if len(p.only) > 0 {
		return p.only
	}
	return []string{lab.IPv4, lab.IPv6, lab.Dual}
}

// stores are all for the paths that most people use. Where leases come from makes no difference to the others.
func (p path) stores() []string {
	if p.spec.Backend == "vxlan" || p.spec.Backend == "host-gw" {
		return []string{lab.Etcd, lab.Kube, lab.File}
	}
	return []string{lab.File}
}

// carrier is what a backend looks like from outside, by address family: true is IPv4.
type carrier struct {
	devices  map[netstate.Family]string
	overhead map[netstate.Family]int // bytes that it adds to a packet
}

// carriers are the backends; host-gw has no device and adds nothing, ipsec has no device.
var carriers = map[string]carrier{
	"vxlan":     {map[netstate.Family]string{netstate.IPv4: "flannel.1", netstate.IPv6: "flannel-v6.1"}, map[netstate.Family]int{netstate.IPv4: 50, netstate.IPv6: 70}},
	"udp":       {map[netstate.Family]string{netstate.IPv4: "flannel0", netstate.IPv6: "flannel0"}, map[netstate.Family]int{netstate.IPv4: 28, netstate.IPv6: 48}},
	"wireguard": {map[netstate.Family]string{netstate.IPv4: "flannel-wg", netstate.IPv6: "flannel-wg-v6"}, map[netstate.Family]int{netstate.IPv4: 80, netstate.IPv6: 80}},
	"ipsec":     {overhead: map[netstate.Family]int{netstate.IPv4: 77, netstate.IPv6: 97}},
	"ipip":      {map[netstate.Family]string{netstate.IPv4: "flannel.ipip", netstate.IPv6: "flannel-v6.ipip"}, map[netstate.Family]int{netstate.IPv4: 20, netstate.IPv6: 40}},
}

// overlays are all carriers' devices.
var overlays = []string{"flannel.1", "flannel-v6.1", "flannel0", "flannel-wg", "flannel-wg-v6", "flannel.ipip", "flannel-v6.ipip"}

func (c cluster) carrier() carrier { return carriers[c.lab.Spec().Backend] }

// inAgent reports whether the agent itself moves the packets: then the device is a TUN device.
func (c cluster) inAgent() (in bool) {
	c.Helper()
	c.must(c.lab.Nodes()[0].Links(func(nl *netlink.Handle) error {
		for _, dev := range c.carrier().devices {
			if link, err := nl.LinkByName(dev); err == nil {
				in = in || link.Type() == "tuntap"
			}
		}
		return nil
	}))
	return in
}
