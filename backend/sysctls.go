package backend

import (
	"math"
	"strconv"

	"github.com/twill-net/twill/netstate"
)

// DeviceSysctls are the parameters of a device of ours without which packets of one family are lost. Others are free: no
// value of them stops a packet (Documentation/drift.md).
func DeviceSysctls(link netstate.Object, f netstate.Family) []netstate.Sysctl {
	dev := link.Key().Name
	_, isBridge := link.(netstate.Bridge)
	conf, neigh := "net/ipv4/conf/"+dev+"/", "net/ipv4/neigh/"+dev+"/"
	sysctls := []netstate.Sysctl{{Name: conf + "forwarding", Value: "1"}}
	switch {
	case f == netstate.IPv6:
		conf, neigh = "net/ipv6/conf/"+dev+"/", "net/ipv6/neigh/"+dev+"/"
		sysctls = []netstate.Sysctl{
			{Name: conf + "accept_ra", Value: "0"}, // any pod could send router advertisements
			{Name: conf + "disable_ipv6", Value: "0"},
			{Name: conf + "mtu", Value: strconv.Itoa(netstate.MTU(link))},
		}
		if !isBridge { // pods of other nodes are more than a hop away
			sysctls = append(sysctls,
				netstate.Sysctl{Name: conf + "hop_limit", Value: "64", Also: netstate.Values{Least: 32, Most: 255}})
		}
	case isBridge: // 8 is silence
		sysctls = append(sysctls, netstate.Sysctl{Name: conf + "arp_ignore", Value: "0", Also: netstate.Values{Least: 0, Most: 2}})
	}
	if isBridge {
		// Pods are asked for their hardware addresses, and not a program on the node. They are told the bridge's when it
		// changes: one that just heard another believes no answer to a question for a second, and then for longer.
		notify := "arp_notify"
		if f == netstate.IPv6 {
			notify = "ndisc_notify"
		}
		sysctls = append(sysctls, netstate.Sysctl{Name: conf + notify, Value: "1"},
			netstate.Sysctl{Name: neigh + "app_solicit", Value: "0"},
			netstate.Sysctl{Name: neigh + "mcast_solicit", Value: "3", Also: netstate.Values{Least: 1, Most: math.MaxInt32}})
	}
	return sysctls
}
