package attributes

// Numbers of attributes that others are nested in.
const (
	linkInfo = 18 // IFLA_LINKINFO
	infoData = 2  // IFLA_INFO_DATA

	infoSlaveData = 5  // IFLA_INFO_SLAVE_DATA
	afSpec        = 26 // IFLA_AF_SPEC
	inet          = 2  // AF_INET
	inet6         = 10 // AF_INET6
	reason        = 55 // IFLA_PROTO_DOWN_REASON
)

const (
	counter   = "a counter"
	creation  = "fixed when the device is made"
	driver    = "a property of the driver"
	hardware  = "of hardware devices"
	sysctls   = "sysctls of the device"
	notice    = "of messages about a change"
	segments  = "how large segments are before they are cut to the MTU is tuning"
	unusedBit = "nothing in the kernel reads it"
	bridged   = "the bridge takes a port's packets, and the node sends none through it"
)

// linkTables begin with what is different from device to device.
var linkTables = []Table{
	{Object: "link", Of: "vxlan", Where: "struct ifinfomsg, flags", Prefix: "IFF_", Place: Bits, Rows: ethernetFlags()},
	{Object: "link", Of: "vxlan", Where: "attributes", Prefix: "IFLA_", Rows: append(ethernet(), tunnel()...)},
	{Object: "link", Of: "vxlan", Where: "IFLA_INFO_DATA", Prefix: "IFLA_VXLAN_", Path: []uint16{linkInfo, infoData},
		Rows: vxlan()},
	{Object: "link", Of: "bridge", Where: "struct ifinfomsg, flags", Prefix: "IFF_", Place: Bits, Rows: ethernetFlags()},
	{Object: "link", Of: "bridge", Where: "attributes", Prefix: "IFLA_", Rows: ethernet()},
	{Object: "link", Of: "bridge", Where: "IFLA_AF_SPEC, AF_INET6", Prefix: "IFLA_INET6_", Path: []uint16{afSpec, inet6},
		Rows: []Attribute{pinned(8, "ADDR_GEN_MODE", "addrgenmode", 0)}},
	{Object: "link", Of: "bridge", Where: "IFLA_INFO_DATA", Prefix: "IFLA_BR_", Path: []uint16{linkInfo, infoData},
		Rows: bridge()},
	{Object: "link", Of: "tun", Where: "struct ifinfomsg, flags", Prefix: "IFF_", Place: Bits,
		Rows: []Attribute{pinned(7, "NOARP", "noarp", 1), pinned(12, "MULTICAST", "multicast", 1)}},
	{Object: "link", Of: "tun", Where: "attributes", Prefix: "IFLA_", Rows: append(tunnel(), pinned(13, "TXQLEN", "qlen", 500))},
	{Object: "link", Of: "tun", Where: "IFLA_INFO_DATA", Prefix: "IFLA_TUN_", Path: []uint16{linkInfo, infoData},
		Rows: tun()},
	{Object: "link", Of: "ipip", Where: "attributes", Prefix: "IFLA_", Rows: tunnel()},
	{Object: "link", Of: "ipip", Where: "IFLA_INFO_DATA", Prefix: "IFLA_IPTUN_", Path: []uint16{linkInfo, infoData},
		Rows: ipip()},
	{Object: "link", Of: "wireguard", Where: "attributes", Prefix: "IFLA_", Rows: tunnel()},
	{Object: "link", Of: "ip6tnl", Where: "attributes", Prefix: "IFLA_", Rows: tunnel()},
	{Object: "link", Of: "ip6tnl", Where: "IFLA_INFO_DATA", Prefix: "IFLA_IPTUN_", Path: []uint16{linkInfo, infoData},
		Rows: ip6tnl()},
	{Object: "link", Of: "veth", Where: "struct ifinfomsg, flags", Prefix: "IFF_", Place: Bits,
		Rows: []Attribute{free(7, "NOARP", "arp", bridged), free(12, "MULTICAST", "multicast", bridged)}},
	{Object: "link", Of: "veth", Where: "attributes", Prefix: "IFLA_", Rows: []Attribute{
		field(1, "ADDRESS", "address", "MAC"), free(2, "BROADCAST", "broadcast", bridged),
		free(3, "IFNAME", "name", "an address is not given to another pod as long as a port of the bridge has an unknown name"),
		field(10, "MASTER", "master", "Bridge"),
		free(20, "IFALIAS", "alias", "the agent knows a port by it: whoever alters it takes the port out of the agent's care"),
	}},
	{Object: "link", Where: "struct ifinfomsg", Prefix: "ifi_", Place: Header, Rows: linkHeader()},
	{Object: "link", Where: "struct ifinfomsg, flags", Prefix: "IFF_", Place: Bits, Rows: linkFlags()},
	{Object: "link", Where: "attributes", Prefix: "IFLA_", Rows: links},
	{Object: "link", Where: "IFLA_LINKINFO", Prefix: "IFLA_INFO_", Path: []uint16{linkInfo}, Rows: linkInfos()},
	{Object: "link", Where: "IFLA_PROTO_DOWN_REASON", Prefix: "IFLA_PROTO_DOWN_REASON_", Path: []uint16{reason},
		Rows: []Attribute{derived(1, "MASK", "the value"), pinned(2, "VALUE", "protodown_reason", 0)}},
	{Object: "link", Where: "IFLA_AF_SPEC, AF_INET", Prefix: "IFLA_INET_", Path: []uint16{afSpec, inet},
		Rows: []Attribute{derived(1, "CONF", sysctls)}},
	{Object: "link", Where: "IFLA_AF_SPEC, AF_INET6", Prefix: "IFLA_INET6_", Path: []uint16{afSpec, inet6},
		Rows: links6()},
}

// ethernetFlags are those of devices with hardware addresses.
func ethernetFlags() []Attribute {
	return []Attribute{pinned(7, "NOARP", "noarp", 0), pinned(12, "MULTICAST", "multicast", 1)}
}

func ethernet() []Attribute {
	return []Attribute{
		field(1, "ADDRESS", "address", "MAC"),
		pinned(2, "BROADCAST", "broadcast", 0xffffffffffff).in(Network),
	}
}

// tunnel is what a tunnel must not have: it cannot cut BIG TCP's segments, which are longer than an IP packet, so that a
// stream through it all but stops (seen with VXLAN on 6.18).
func tunnel() []Attribute {
	const size, why = 65536, "at most 65536: a tunnel does not cut longer segments, and loses them"
	return []Attribute{
		most(41, "GSO_MAX_SIZE", "gso_max_size", size, why), most(58, "GRO_MAX_SIZE", "gro_max_size", size, why),
		most(63, "GSO_IPV4_MAX_SIZE", "gso_ipv4_max_size", size, why),
		most(64, "GRO_IPV4_MAX_SIZE", "gro_ipv4_max_size", size, why),
	}
}

// linkHeader is fields, not attributes: their IDs are the bytes where they begin.
func linkHeader() []Attribute {
	return []Attribute{
		derived(0, "family", "the request"), derived(2, "type", creation), derived(4, "index", creation),
		derived(12, "change", notice),
	}
}

func linkFlags() []Attribute {
	return []Attribute{
		field(0, "UP", "up", "Up"),
		derived(1, "BROADCAST", driver),
		free(2, "DEBUG", "", unusedBit),
		derived(3, "LOOPBACK", driver),
		derived(4, "POINTOPOINT", driver),
		free(5, "NOTRAILERS", "trailers", unusedBit),
		derived(6, "RUNNING", "IFLA_OPERSTATE"),
		pinned(7, "NOARP", "noarp", 1),
		free(8, "PROMISC", "promisc", "to see more packets loses none, and monitoring programs do"),
		free(9, "ALLMULTI", "allmulticast", "to see more packets loses none, and routing programs do"),
		derived(10, "MASTER", driver),
		derived(11, "SLAVE", "IFLA_MASTER"),
		derived(12, "MULTICAST", driver),
		free(13, "PORTSEL", "", unusedBit),
		free(14, "AUTOMEDIA", "", unusedBit),
		free(15, "DYNAMIC", "dynamic", unusedBit),
		derived(16, "LOWER_UP", "IFLA_CARRIER"),
		derived(17, "DORMANT", "IFLA_OPERSTATE"),
		derived(18, "ECHO", driver),
	}
}

var links = []Attribute{
	derived(1, "ADDRESS", "the tunnel's local address"),
	derived(2, "BROADCAST", "the tunnel's remote address"),
	field(3, "IFNAME", "name", "Name"),
	field(4, "MTU", "mtu", "MTU"),
	derived(5, "LINK", "the device that the tunnel is bound to"),
	free(6, "QDISC", "qdisc", "whoever attaches one shapes traffic on purpose; the doctor names one that drops packets"),
	derived(7, "STATS", counter),
	derived(8, "COST", "nothing: the kernel does not report it"),
	derived(9, "PRIORITY", "nothing: the kernel does not report it"),
	pinned(10, "MASTER", "master", 0).in(Device),
	derived(11, "WIRELESS", hardware),
	derived(12, "PROTINFO", "the bridge that a device is plugged into"),
	free(13, "TXQLEN", "txqueuelen", "how much a qdisc queues is tuning, and these devices have none of their own"),
	derived(14, "MAP", hardware),
	derived(15, "WEIGHT", "nothing: the kernel does not report it"),
	derived(16, "OPERSTATE", "IFF_UP, IFLA_CARRIER and IFLA_LINKMODE"),
	pinned(17, "LINKMODE", "mode", 0),
	derived(18, "LINKINFO", "the tables of the device's type"),
	derived(19, "NET_NS_PID", "nothing: only requests have it"),
	field(20, "IFALIAS", "alias", "Marked"),
	derived(21, "NUM_VF", hardware),
	derived(22, "VFINFO_LIST", hardware),
	derived(23, "STATS64", counter),
	derived(24, "VF_PORTS", hardware),
	derived(25, "PORT_SELF", hardware),
	derived(26, "AF_SPEC", "the tables of its families"),
	free(27, "GROUP", "group", "a label by which an administrator speaks of several devices"),
	derived(28, "NET_NS_FD", "nothing: only requests have it"),
	derived(29, "EXT_MASK", "nothing: only requests have it"),
	derived(30, "PROMISCUITY", "who listens in promiscuous mode, tcpdump too"),
	derived(31, "NUM_TX_QUEUES", creation),
	derived(32, "NUM_RX_QUEUES", creation),
	derived(33, "CARRIER", "IFLA_PROTO_DOWN; of a bridge its ports; of a TUN device the process that has it open"),
	derived(34, "PHYS_PORT_ID", hardware),
	derived(35, "CARRIER_CHANGES", counter),
	derived(36, "PHYS_SWITCH_ID", hardware),
	derived(37, "LINK_NETNSID", "the namespace of the device that the tunnel is bound to"),
	derived(38, "PHYS_PORT_NAME", hardware),
	pinned(39, "PROTO_DOWN", "protodown", 0),
	free(40, "GSO_MAX_SEGS", "gso_max_segs", segments),
	free(41, "GSO_MAX_SIZE", "gso_max_size", segments),
	derived(42, "PAD", "nothing"),
	free(43, "XDP", "xdp", "whoever attaches a program does so on purpose; bpftool net names it"),
	derived(44, "EVENT", notice),
	derived(45, "NEW_NETNSID", notice),
	derived(46, "TARGET_NETNSID", "the request"),
	derived(47, "CARRIER_UP_COUNT", counter),
	derived(48, "CARRIER_DOWN_COUNT", counter),
	derived(49, "NEW_IFINDEX", notice),
	derived(50, "MIN_MTU", driver),
	derived(51, "MAX_MTU", driver),
	free(52, "PROP_LIST", "altname", "more names of the device"),
	derived(53, "ALT_IFNAME", "nothing: only requests have it"),
	derived(54, "PERM_ADDRESS", hardware),
	derived(55, "PROTO_DOWN_REASON", "its table"),
	derived(56, "PARENT_DEV_NAME", hardware),
	derived(57, "PARENT_DEV_BUS_NAME", hardware),
	free(58, "GRO_MAX_SIZE", "gro_max_size", segments),
	derived(59, "TSO_MAX_SIZE", driver),
	derived(60, "TSO_MAX_SEGS", driver),
	derived(61, "ALLMULTI", "who listens to all multicast packets"),
	derived(62, "DEVLINK_PORT", hardware),
	free(63, "GSO_IPV4_MAX_SIZE", "gso_ipv4_max_size", segments),
	free(64, "GRO_IPV4_MAX_SIZE", "gro_ipv4_max_size", segments),
	derived(65, "DPLL_PIN", hardware),
	derived(66, "MAX_PACING_OFFLOAD_HORIZON", hardware),
	derived(67, "NETNS_IMMUTABLE", driver),
	derived(68, "HEADROOM", driver),
	derived(69, "TAILROOM", driver),
}

func linkInfos() []Attribute {
	return []Attribute{
		field(1, "KIND", "type", "the object's type"),
		derived(2, "DATA", "the tables of the device's type"),
		derived(3, "XSTATS", counter),
		derived(4, "SLAVE_KIND", "IFLA_MASTER"),
		derived(5, "SLAVE_DATA", "IFLA_MASTER"),
	}
}

func links6() []Attribute {
	return []Attribute{
		derived(1, "FLAGS", "whether IPv6 runs on the device"),
		derived(2, "CONF", sysctls),
		derived(3, "STATS", counter),
		derived(4, "MCAST", "nothing: the kernel does not report it"),
		derived(5, "CACHEINFO", "timers and sysctls of the device"),
		derived(6, "ICMP6STATS", counter),
		free(7, "TOKEN", "token", "half an address for router advertisements, which these devices do not follow"),
		free(8, "ADDR_GEN_MODE", "addrgenmode", "nothing is sent from these devices' link-local addresses"),
		derived(9, "RA_MTU", "router advertisements"),
	}
}
