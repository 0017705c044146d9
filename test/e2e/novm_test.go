//go:build !vm

package e2e

import (
	"time"

	"github.com/twill-net/twill/lab"
)

// pingInterval is the time between two pings of a stream.
const pingInterval = 10 * time.Millisecond

// kernelPaths are those that not every kernel has.
var kernelPaths []path

// changes are clusters that get one backend after the other, under what else a cluster may have.
var changes = []change{
	{name: "plain", ways: []way{vxlan1, vxlan7, otherPort}},
	{name: "dual", spec: lab.Spec{Family: lab.Dual}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "rpfilter", ways: []way{vxlan1, hostgw.with(oneSided), vxlan7.with(oneSided)},
		onNode: "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth1.rp_filter=1"},
	{name: "iptables", keys: `"EnableNFTables": false,`, ways: []way{vxlan1, vxlan7, hostgw}},
	{name: "policies", spec: lab.Spec{NetworkPolicy: true}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "strict", ways: []way{strict1, strict7, hostgw}},
	{name: "fastpath", spec: lab.Spec{FastPath: true}, ways: []way{vxlan1, hostgw, vxlan7}},
	{name: "wireguard", ways: []way{vxlan1, encrypted, vxlan1.with(restarted)}, onNode: noClearText},
	{name: "udp", ways: []way{hostgw, inUDP, vxlan1.with(restarted)}},
	{name: "kube", spec: lab.Spec{Store: lab.Kube}, ways: []way{vxlan1, hostgw, vxlan7}},
}
