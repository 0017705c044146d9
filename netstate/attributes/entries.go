package attributes

const (
	learning = "what the kernel learns"
	owner    = "a label that says which program wrote it"
)

var addrTables = []Table{
	{Object: "addr", Where: "struct ifaddrmsg", Prefix: "ifa_", Place: Header, Rows: []Attribute{
		field(0, "family", "", "Prefix"), field(1, "prefixlen", "", "Prefix"), derived(2, "flags", "IFA_FLAGS"),
		pinned(3, "scope", "scope", 0), field(4, "index", "dev", "Dev"),
	}},
	{Object: "addr", Where: "IFA_FLAGS", Prefix: "IFA_F_", Place: Bits, Rows: []Attribute{
		derived(0, "SECONDARY", "the order of a subnet's addresses; of IPv6, that it is temporary"),
		field(1, "NODAD", "nodad", "NoDAD"),
		derived(2, "OPTIMISTIC", "sysctls of the device"),
		derived(3, "DADFAILED", "the answers to the search for duplicates"),
		pinned(4, "HOMEADDRESS", "home", 0),
		derived(5, "DEPRECATED", "the preferred lifetime"),
		derived(6, "TENTATIVE", "the search for duplicates"),
		derived(7, "PERMANENT", "the valid lifetime"),
		pinned(8, "MANAGETEMPADDR", "mngtmpaddr", 0),
		pinned(9, "NOPREFIXROUTE", "noprefixroute", 0),
		pinned(10, "MCAUTOJOIN", "autojoin", 0),
		pinned(11, "STABLE_PRIVACY", "stable-privacy", 0),
	}},
	{Object: "addr", Where: "attributes", Prefix: "IFA_", Rows: []Attribute{
		field(1, "ADDRESS", "peer", "Peer"),
		field(2, "LOCAL", "local", "Prefix"),
		free(3, "LABEL", "label", "a name for the address, which only old programs show"),
		pinned(4, "BROADCAST", "broadcast", 0).in(Address),
		derived(5, "ANYCAST", "nothing: lists of anycast addresses have it"),
		{ID: 6, Name: "CACHEINFO", Word: "valid_lft", Fate: Pinned, Value: 1<<64 - 1,
			Note: "both lifetimes, preferred and valid, have no end; the times behind them are derived"},
		derived(7, "MULTICAST", "nothing: lists of multicast addresses have it"),
		derived(8, "FLAGS", "the table of its bits"),
		pinned(9, "RT_PRIORITY", "metric", 0),
		derived(10, "TARGET_NETNSID", "the request"),
		free(11, "PROTO", "proto", owner),
	}},
}

var entryTables = []Table{
	{Object: "neigh", Where: "struct ndmsg", Prefix: "ndm_", Place: Header, Rows: []Attribute{
		field(0, "family", "", "IP"), field(4, "ifindex", "dev", "Dev"), pinned(8, "state", "nud", 0x80),
		derived(10, "flags", "the table of its bits"), derived(11, "type", "the address"),
	}},
	{Object: "neigh", Where: "struct ndmsg, flags", Prefix: "NTF_", Place: Bits, Rows: []Attribute{
		derived(0, "USE", "nothing: only requests have it"),
		derived(1, "SELF", "nothing: of FDB entries"),
		derived(2, "MASTER", "nothing: of FDB entries"),
		free(3, "PROXY", "proxy", "an entry of another list, by which the node answers for an address that is elsewhere"),
		pinned(4, "EXT_LEARNED", "extern_learn", 0),
		derived(5, "OFFLOADED", hardware),
		derived(6, "STICKY", "nothing: of FDB entries"),
		pinned(7, "ROUTER", "router", 0),
	}},
	{Object: "neigh", Where: "attributes", Prefix: "NDA_", Rows: []Attribute{
		field(1, "DST", "", "IP"),
		field(2, "LLADDR", "lladdr", "MAC"),
		derived(3, "CACHEINFO", "times of use"),
		derived(4, "PROBES", counter),
		free(12, "PROTOCOL", "protocol", owner),
		pinned(15, "FLAGS_EXT", "managed", 0),
	}},
	{Object: "fdb", Of: "vxlan", Where: "struct ndmsg", Prefix: "ndm_", Place: Header, Rows: []Attribute{
		derived(0, "family", "the request"), field(4, "ifindex", "dev", "Dev"),
		{ID: 8, Name: "state", Word: "permanent", Fate: Pinned, Value: 0x80, Note: "NOARP comes with it"},
		derived(10, "flags", "the table of its bits"), derived(11, "type", "nothing"),
	}},
	{Object: "fdb", Of: "vxlan", Where: "struct ndmsg, flags", Prefix: "NTF_", Place: Bits, Rows: []Attribute{
		free(0, "USE", "use", "the entry counts as used now, and does not age"),
		pinned(1, "SELF", "self", 1),
		pinned(2, "MASTER", "master", 0),
		pinned(3, "PROXY", "proxy", 0),
		pinned(4, "EXT_LEARNED", "extern_learn", 0),
		derived(5, "OFFLOADED", hardware),
		pinned(6, "STICKY", "sticky", 0),
		pinned(7, "ROUTER", "router", 0),
	}},
	{Object: "fdb", Of: "vxlan", Where: "attributes", Prefix: "NDA_", Rows: []Attribute{
		field(1, "DST", "dst", "Dst"),
		field(2, "LLADDR", "", "MAC"),
		derived(3, "CACHEINFO", "times of use"),
		pinned(6, "PORT", "port", 0).in(Network),
		pinned(7, "VNI", "vni", 0),
		pinned(8, "IFINDEX", "via", 0).in(Device),
		derived(10, "LINK_NETNSID", "the namespace of the underlay"),
		pinned(11, "SRC_VNI", "src_vni", 0),
		pinned(13, "NH_ID", "nhid", 0),
	}},
}
