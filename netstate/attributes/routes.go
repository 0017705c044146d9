package attributes

const (
	metrics  = 8 // RTA_METRICS
	ofLookup = "nothing: only answers about one packet have it"
	says     = "it says that hardware forwards, and changes nothing"
)

var routeTables = []Table{
	{Object: "route", Where: "struct rtmsg", Prefix: "rtm_", Place: Header, Rows: []Attribute{
		field(0, "family", "", "Dst"), field(1, "dst_len", "", "Dst"), derived(2, "src_len", "RTA_SRC"),
		field(3, "tos", "tos", "TOS"), field(4, "table", "table", "Table"), field(5, "protocol", "proto", "Protocol"),
		pinned(6, "scope", "scope", 0), field(7, "type", "type", "Blackhole"), derived(8, "flags", "the table of its bits"),
	}},
	{Object: "route", Where: "struct rtmsg, flags", Prefix: "", Place: Bits, Rows: []Attribute{
		derived(0, "RTNH_F_DEAD", "the device's state"),
		pinned(1, "RTNH_F_PERVASIVE", "pervasive", 0),
		field(2, "RTNH_F_ONLINK", "onlink", "Onlink"),
		free(3, "RTNH_F_OFFLOAD", "", says),
		derived(4, "RTNH_F_LINKDOWN", "the device's state"),
		derived(5, "RTNH_F_UNRESOLVED", "nothing: of multicast routes"),
		free(6, "RTNH_F_TRAP", "", says),
		derived(8, "RTM_F_NOTIFY", "nothing: only requests have it"),
		derived(9, "RTM_F_CLONED", learning),
		derived(10, "RTM_F_EQUALIZE", "nothing"),
		derived(11, "RTM_F_PREFIX", "router advertisements"),
		derived(12, "RTM_F_LOOKUP_TABLE", "nothing: only requests have it"),
		derived(13, "RTM_F_FIB_MATCH", "nothing: only requests have it"),
		free(14, "RTM_F_OFFLOAD", "", says),
		free(15, "RTM_F_TRAP", "", says),
		derived(29, "RTM_F_OFFLOAD_FAILED", hardware),
	}},
	{Object: "route", Where: "attributes", Prefix: "RTA_", Rows: routes()},
	{Object: "route", Where: "RTA_METRICS", Prefix: "RTAX_", Path: []uint16{metrics}, Rows: routeMetrics()},
	{Object: "route", Of: "ip6tnl", Where: "RTA_ENCAP", Prefix: "LWTUNNEL_IP6_", Path: []uint16{22}, Rows: []Attribute{
		pinned(1, "ID", "id", 0),
		field(2, "DST", "dst", "Via"),
		field(3, "SRC", "src", "Outer"),
		pinned(4, "HOPLIMIT", "hoplimit", 0),
		pinned(5, "TC", "tc", 0),
		pinned(6, "FLAGS", "flags", 0),
		derived(7, "PAD", "nothing"),
		pinned(8, "OPTS", "opts", 0),
	}},
}

func routes() []Attribute {
	return []Attribute{
		field(1, "DST", "", "Dst"),
		pinned(2, "SRC", "from", 0).in(Address),
		derived(3, "IIF", ofLookup),
		field(4, "OIF", "dev", "Dev"),
		field(5, "GATEWAY", "via", "Via"),
		field(6, "PRIORITY", "metric", "Metric"),
		field(7, "PREFSRC", "src", "Src"),
		derived(8, "METRICS", "its table"),
		pinned(9, "MULTIPATH", "multipath", 0),
		derived(10, "PROTOINFO", "nothing: the kernel does not report it"),
		pinned(11, "FLOW", "realm", 0),
		{ID: 12, Name: "CACHEINFO", Word: "expires", Fate: Pinned, Note: "the time when it ends; the rest is derived"},
		derived(13, "SESSION", "nothing: the kernel does not report it"),
		derived(14, "MP_ALGO", "nothing: the kernel does not report it"),
		field(15, "TABLE", "table", "Table"),
		derived(16, "MARK", ofLookup),
		derived(17, "MFC_STATS", "nothing: of multicast routes"),
		pinned(18, "VIA", "via", 0),
		derived(19, "NEWDST", "nothing: of MPLS routes"),
		pinned(20, "PREF", "pref", 0),
		pinned(21, "ENCAP_TYPE", "encap", 0),
		pinned(22, "ENCAP", "encap", 0),
		derived(23, "EXPIRES", "nothing: only requests have it"),
		derived(24, "PAD", "nothing"),
		derived(25, "UID", ofLookup),
		derived(26, "TTL_PROPAGATE", "nothing: of MPLS routes"),
		derived(27, "IP_PROTO", ofLookup),
		derived(28, "SPORT", ofLookup),
		derived(29, "DPORT", ofLookup),
		pinned(30, "NH_ID", "nhid", 0),
		derived(31, "FLOWLABEL", ofLookup),
	}
}

// routeMetrics are absent from our routes, but for an MTU.
func routeMetrics() []Attribute {
	return []Attribute{
		pinned(1, "LOCK", "lock", 0),
		field(2, "MTU", "mtu", "MTU"),
		pinned(3, "WINDOW", "window", 0),
		pinned(4, "RTT", "rtt", 0),
		pinned(5, "RTTVAR", "rttvar", 0),
		pinned(6, "SSTHRESH", "ssthresh", 0),
		pinned(7, "CWND", "cwnd", 0),
		pinned(8, "ADVMSS", "advmss", 0),
		pinned(9, "REORDERING", "reordering", 0),
		pinned(10, "HOPLIMIT", "hoplimit", 0),
		pinned(11, "INITCWND", "initcwnd", 0),
		pinned(12, "FEATURES", "features", 0),
		pinned(13, "RTO_MIN", "rto_min", 0),
		pinned(14, "INITRWND", "initrwnd", 0),
		pinned(15, "QUICKACK", "quickack", 0),
		pinned(16, "CC_ALGO", "congctl", 0),
		pinned(17, "FASTOPEN_NO_COOKIE", "fastopen_no_cookie", 0),
	}
}
