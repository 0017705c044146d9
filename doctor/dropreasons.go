package doctor

// dropReason explains one of the kernel's reasons for dropping a packet, and the finding that it belongs to.
type dropReason struct {
	text string
	kind kind
}

func (r dropReason) String() string {
	if r.kind == none {
		return r.text
	}
	return r.text + ": " + r.kind.page()
}

// dropReasons are those that overlay networks meet. VXLAN devices give theirs since Linux 6.12; before, they give
// NOT_SPECIFIED.
var dropReasons = map[string]dropReason{
	"NETFILTER_DROP":           {"a firewall rule refuses it; twillctl doctor names the rule", forwardRejected},
	"IP_RPFILTER":              {"the reverse path filter: the sender is routed through another device", rpFilter},
	"IP_INNOROUTES":            {"no route leads to the receiver", routeMissing},
	"IP_OUTNOROUTES":           {"no route leads to the receiver", routeMissing},
	"IP_INADDRERRORS":          {"it is for another address, and forwarding is off", ipForwardOff},
	"NEIGH_FAILED":             {"nobody answers for the next hop's address", neighbourMissing},
	"NEIGH_CREATEFAIL":         {"the neighbour table is full", neighbourMissing},
	"NEIGH_QUEUEFULL":          {"too many packets wait for a neighbour that does not answer", neighbourMissing},
	"NEIGH_DEAD":               {"the neighbour entry was just deleted", neighbourMissing},
	"NO_TX_TARGET":             {"the device has no forwarding entry for this MAC", fdbMissing},
	"VXLAN_VNI_NOT_FOUND":      {"no device here has this network number (VNI)", vtepAltered},
	"VXLAN_INVALID_HDR":        {"it is no VXLAN packet: another program sends to this UDP port", udpPortTaken},
	"LOCAL_MAC":                {"this device's own MAC is its sender: a loop, or a cloned machine", duplicateMAC},
	"MAC_INVALID_SOURCE":       {"this device's own MAC is its sender: a loop, or a cloned machine", duplicateMAC},
	"OTHERHOST":                {"the frame is for another MAC than this device's", vtepMAC},
	"PKT_TOO_BIG":              {"it is larger than the next device's MTU", pathMTU},
	"NOT_SPECIFIED":            {"it gives no reason: a blackhole or prohibit route, or a part without reasons", routeAltered},
	"BRIDGE_INGRESS_STP_STATE": {"the bridge, or this port of it, is down", bridgeDown},
	"NO_SOCKET":                {"no program listens on this port", none},
	"UNHANDLED_PROTO":          {"the kernel does not handle this protocol here", none},
	"DEV_READY":                {"the device is down", bridgeDown},
	"UDP_CSUM":                 {"the UDP checksum is wrong: an offload of the card, perhaps", tcpLost},
	"TCP_CSUM":                 {"the TCP checksum is wrong: an offload of the card, perhaps", tcpLost},
	"IP_CSUM":                  {"the IP checksum is wrong", tcpLost},
	"SKB_CSUM":                 {"the checksum is wrong: an offload of the card, perhaps", tcpLost},
	"IPV6DISABLED":             {"IPv6 is disabled on the device", sysctl},
	"TC_INGRESS":               {"a tc filter refuses it", none},
	"TC_EGRESS":                {"a tc filter refuses it", none},
	"XDP":                      {"an XDP program refuses it", none},
	"QDISC_DROP":               {"the device's queue refuses it", none},
	"CPU_BACKLOG":              {"a processor has more packets than it can handle", none},
	"SOCKET_RCVBUFF":           {"the receiving program is too slow", none},
	"IP_INVALID_SOURCE":        {"its source address cannot be here", duplicateUnderlay},
	"IP_LOCAL_SOURCE":          {"its source is an address of this machine's own", duplicateUnderlay},
	"TUNNEL_TXINFO":            {"the tunnel does not know where to send it", fdbMissing},
	"RECURSION_LIMIT":          {"a tunnel leads into itself", underlayUnreachable},
}
