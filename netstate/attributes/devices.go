package attributes

const (
	external = "routes: the device is external"
	timer    = "a timer"
	tree     = "the spanning tree, which is off"
	opener   = "the process that has the device open"
)

func vxlan() []Attribute {
	return []Attribute{
		field(1, "ID", "id", "VNI"),
		pinned(2, "GROUP", "group", 0).in(Address),
		field(3, "LINK", "dev", "Dev"),
		field(4, "LOCAL", "local", "Local"),
		pinned(5, "TTL", "ttl", 0),
		pinned(6, "TOS", "tos", 0),
		field(7, "LEARNING", "learning", "Learning"),
		pinned(8, "AGEING", "ageing", 300),
		pinned(9, "LIMIT", "maxaddress", 0),
		pinned(10, "PORT_RANGE", "srcport", 0).in(Network),
		pinned(11, "PROXY", "proxy", 0),
		pinned(12, "RSC", "rsc", 0),
		pinned(13, "L2MISS", "l2miss", 0),
		pinned(14, "L3MISS", "l3miss", 0),
		field(15, "PORT", "dstport", "Port"),
		pinned(16, "GROUP6", "group", 0).in(Address),
		field(17, "LOCAL6", "local", "Local"),
		pinned(18, "UDP_CSUM", "udpcsum", 1),
		pinned(19, "UDP_ZERO_CSUM6_TX", "udp6zerocsumtx", 0),
		pinned(20, "UDP_ZERO_CSUM6_RX", "udp6zerocsumrx", 0),
		pinned(21, "REMCSUM_TX", "remcsumtx", 0),
		pinned(22, "REMCSUM_RX", "remcsumrx", 0),
		field(23, "GBP", "gbp", "GBP"),
		pinned(24, "REMCSUM_NOPARTIAL", "remcsum_nopartial", 0),
		pinned(25, "COLLECT_METADATA", "external", 0),
		pinned(26, "LABEL", "flowlabel", 0).in(Network),
		pinned(27, "GPE", "gpe", 0),
		pinned(28, "TTL_INHERIT", "ttl_inherit", 0),
		pinned(29, "DF", "df", 0),
		pinned(30, "VNIFILTER", "vnifilter", 0),
		pinned(31, "LOCALBYPASS", "localbypass", 1),
		pinned(32, "LABEL_POLICY", "label_policy", 0),
		derived(33, "RESERVED_BITS", creation),
	}
}

// bridge lists the values of a new bridge. Times are in hundredths of a second.
func bridge() []Attribute {
	return []Attribute{
		pinned(1, "FORWARD_DELAY", "forward_delay", 1500),
		pinned(2, "HELLO_TIME", "hello_time", 200),
		pinned(3, "MAX_AGE", "max_age", 2000),
		pinned(4, "AGEING_TIME", "ageing_time", 30000),
		pinned(5, "STP_STATE", "stp_state", 0),
		pinned(6, "PRIORITY", "priority", 0x8000),
		pinned(7, "VLAN_FILTERING", "vlan_filtering", 0),
		pinned(8, "VLAN_PROTOCOL", "vlan_protocol", 0x8100).in(Network),
		pinned(9, "GROUP_FWD_MASK", "group_fwd_mask", 0),
		derived(10, "ROOT_ID", tree),
		derived(11, "BRIDGE_ID", "priority and address"),
		derived(12, "ROOT_PORT", tree),
		derived(13, "ROOT_PATH_COST", tree),
		derived(14, "TOPOLOGY_CHANGE", tree),
		derived(15, "TOPOLOGY_CHANGE_DETECTED", tree),
		derived(16, "HELLO_TIMER", timer),
		derived(17, "TCN_TIMER", timer),
		derived(18, "TOPOLOGY_CHANGE_TIMER", timer),
		derived(19, "GC_TIMER", timer),
		pinned(20, "GROUP_ADDR", "group_address", 0x0180c2000000).in(Network),
		derived(21, "FDB_FLUSH", "nothing: only requests have it"),
		pinned(22, "MCAST_ROUTER", "mcast_router", 1),
		pinned(23, "MCAST_SNOOPING", "mcast_snooping", 1),
		pinned(24, "MCAST_QUERY_USE_IFADDR", "mcast_query_use_ifaddr", 0),
		pinned(25, "MCAST_QUERIER", "mcast_querier", 0),
		pinned(26, "MCAST_HASH_ELASTICITY", "mcast_hash_elasticity", 16),
		pinned(27, "MCAST_HASH_MAX", "mcast_hash_max", 4096),
		pinned(28, "MCAST_LAST_MEMBER_CNT", "mcast_last_member_count", 2),
		pinned(29, "MCAST_STARTUP_QUERY_CNT", "mcast_startup_query_count", 2),
		pinned(30, "MCAST_LAST_MEMBER_INTVL", "mcast_last_member_interval", 100),
		pinned(31, "MCAST_MEMBERSHIP_INTVL", "mcast_membership_interval", 26000),
		pinned(32, "MCAST_QUERIER_INTVL", "mcast_querier_interval", 25500),
		pinned(33, "MCAST_QUERY_INTVL", "mcast_query_interval", 12500),
		pinned(34, "MCAST_QUERY_RESPONSE_INTVL", "mcast_query_response_interval", 1000),
		free(35, "MCAST_STARTUP_QUERY_INTVL", "mcast_startup_query_interval",
			"only a querier uses it, which this bridge is not; kernels round it differently"),
		pinned(36, "NF_CALL_IPTABLES", "nf_call_iptables", 0),
		pinned(37, "NF_CALL_IP6TABLES", "nf_call_ip6tables", 0),
		pinned(38, "NF_CALL_ARPTABLES", "nf_call_arptables", 0),
		pinned(39, "VLAN_DEFAULT_PVID", "vlan_default_pvid", 1),
		derived(40, "PAD", "nothing"),
		free(41, "VLAN_STATS_ENABLED", "vlan_stats_enabled", "statistics"),
		free(42, "MCAST_STATS_ENABLED", "mcast_stats_enabled", "statistics"),
		pinned(43, "MCAST_IGMP_VERSION", "mcast_igmp_version", 2),
		pinned(44, "MCAST_MLD_VERSION", "mcast_mld_version", 1),
		free(45, "VLAN_STATS_PER_PORT", "vlan_stats_per_port", "statistics"),
		pinned(46, "MULTI_BOOLOPT", "boolopt", 0).in(Options),
		derived(47, "MCAST_QUERIER_STATE", "the queries that arrive"),
		derived(48, "FDB_N_LEARNED", counter),
		pinned(49, "FDB_MAX_LEARNED", "fdb_max_learned", 0),
	}
}

func tun() []Attribute {
	return []Attribute{
		derived(1, "OWNER", creation),
		derived(2, "GROUP", creation),
		field(3, "TYPE", "mode", "the object's type"),
		derived(4, "PI", opener),
		derived(5, "VNET_HDR", opener),
		pinned(6, "PERSIST", "persist", 1),
		pinned(7, "MULTI_QUEUE", "multi_queue", 0),
		derived(8, "NUM_QUEUES", opener),
		derived(9, "NUM_DISABLED_QUEUES", opener),
	}
}

func ipip() []Attribute {
	return []Attribute{
		pinned(1, "LINK", "dev", 0).in(Device),
		field(2, "LOCAL", "local", "Local"),
		pinned(3, "REMOTE", "remote", 0).in(Address),
		pinned(4, "TTL", "ttl", 0),
		pinned(5, "TOS", "tos", 0),
		pinned(9, "PROTO", "mode", 4),
		pinned(10, "PMTUDISC", "pmtudisc", 1),
		pinned(15, "ENCAP_TYPE", "encap", 0),
		derived(16, "ENCAP_FLAGS", "IFLA_IPTUN_ENCAP_TYPE"),
		derived(17, "ENCAP_SPORT", "IFLA_IPTUN_ENCAP_TYPE"),
		derived(18, "ENCAP_DPORT", "IFLA_IPTUN_ENCAP_TYPE"),
		pinned(19, "COLLECT_METADATA", "external", 0),
		pinned(20, "FWMARK", "fwmark", 0),
	}
}

func ip6tnl() []Attribute {
	return []Attribute{
		derived(1, "LINK", external),
		derived(2, "LOCAL", external),
		derived(3, "REMOTE", external),
		derived(4, "TTL", external),
		derived(6, "ENCAP_LIMIT", external),
		derived(7, "FLOWINFO", external),
		derived(8, "FLAGS", external),
		pinned(9, "PROTO", "mode", 0),
		pinned(15, "ENCAP_TYPE", "encap", 0),
		derived(16, "ENCAP_FLAGS", "IFLA_IPTUN_ENCAP_TYPE"),
		derived(17, "ENCAP_SPORT", "IFLA_IPTUN_ENCAP_TYPE"),
		derived(18, "ENCAP_DPORT", "IFLA_IPTUN_ENCAP_TYPE"),
		field(19, "COLLECT_METADATA", "external", "External"),
		derived(20, "FWMARK", external),
	}
}
