package doctor

// reason explains one of the kernel's words for dropping a packet (enum skb_drop_reason), and which finding it belongs to.
type reason struct{ says, finding string }

func (r reason) more() string {
	if r.finding == "" {
		return ""
	}
	return ": Documentation/doctor/" + r.finding + ".md"
}

// reasons are those that overlay networks meet. VXLAN devices give theirs since Linux 6.12; before, they say NOT_SPECIFIED.
var reasons = map[string]reason{
	"NETFILTER_DROP":           {"a firewall rule refuses it; twillctl doctor names the rule", "forward-rejected"},
	"IP_RPFILTER":              {"the reverse path check: the way back to the sender leads through another device", "rp-filter"},
	"IP_INNOROUTES":            {"no route leads to the receiver", "route-missing"},
	"IP_OUTNOROUTES":           {"no route leads to the receiver", "route-missing"},
	"IP_INADDRERRORS":          {"it is for another address, and forwarding is off", "ip-forward-off"},
	"NEIGH_FAILED":             {"nobody answers who has the next hop's address", "neighbour-missing"},
	"NEIGH_CREATEFAIL":         {"the neighbour table is full", "neighbour-missing"},
	"NEIGH_QUEUEFULL":          {"too many packets wait for a neighbour that does not answer", "neighbour-missing"},
	"NEIGH_DEAD":               {"the neighbour entry was just deleted", "neighbour-missing"},
	"NO_TX_TARGET":             {"the device has no forwarding entry for this MAC", "fdb-missing"},
	"VXLAN_VNI_NOT_FOUND":      {"no device here has this network number (VNI)", "vtep-altered"},
	"VXLAN_INVALID_HDR":        {"it is no VXLAN packet: another program sends to this UDP port", "udp-port-taken"},
	"LOCAL_MAC":                {"the frame has this device's own MAC as its sender: a loop, or a cloned machine", "duplicate-mac"},
	"MAC_INVALID_SOURCE":       {"the frame has this device's own MAC as its sender: a loop, or a cloned machine", "duplicate-mac"},
	"OTHERHOST":                {"the frame is for another MAC than this device's", "vtep-mac"},
	"PKT_TOO_BIG":              {"it is larger than the next device's MTU", "path-mtu"},
	"NOT_SPECIFIED":            {"the kernel does not say why: a blackhole or prohibit route, or a part of it that gives no reasons yet", "route-altered"},
	"BRIDGE_INGRESS_STP_STATE": {"the bridge, or this port of it, is down", "bridge-down"},
	"NO_SOCKET":                {"no program listens on this port", ""},
	"UNHANDLED_PROTO":          {"no part of the kernel takes this protocol here", ""},
	"DEV_READY":                {"the device is down", "bridge-down"},
	"UDP_CSUM":                 {"the UDP checksum is wrong: an offload of the card, perhaps", "tcp-lost"},
	"TCP_CSUM":                 {"the TCP checksum is wrong: an offload of the card, perhaps", "tcp-lost"},
	"IP_CSUM":                  {"the IP checksum is wrong", "tcp-lost"},
	"SKB_CSUM":                 {"the checksum is wrong: an offload of the card, perhaps", "tcp-lost"},
	"IPV6DISABLED":             {"IPv6 is disabled on the device", "sysctl"},
	"TC_INGRESS":               {"a tc filter refuses it", ""},
	"TC_EGRESS":                {"a tc filter refuses it", ""},
	"XDP":                      {"an XDP program refuses it", ""},
	"QDISC_DROP":               {"the device's queue refuses it", ""},
	"CPU_BACKLOG":              {"a processor has more packets than it can take", ""},
	"SOCKET_RCVBUFF":           {"the receiving program is too slow", ""},
	"IP_INVALID_SOURCE":        {"its source address cannot be here", "duplicate-underlay"},
	"IP_LOCAL_SOURCE":          {"its source is an address of this machine's own", "duplicate-underlay"},
	"TUNNEL_TXINFO":            {"the tunnel does not know where to send it", "fdb-missing"},
	"RECURSION_LIMIT":          {"a tunnel leads into itself", "underlay-unreachable"},
}
