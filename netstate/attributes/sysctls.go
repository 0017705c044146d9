package attributes

import (
	"slices"
	"strings"
)

// Parameters are the sysctls of the bridge and of overlay devices: what lies below net/ipv4/conf/DEV and so on, of
// Linux 6.18. What is free was tried: with every value the kernel takes, small packets and the largest reach pods of
// this node and of others, both ways, after neighbour entries were flushed.
var Parameters = []Table{
	parameters("net/ipv4/conf", []Attribute{
		parameter("forwarding", "1"), parameter("arp_ignore", "of the bridge, 0 to 2"),
		parameter("arp_notify", "of the bridge, 1"),
		parameter("rp_filter", "of overlay devices, 2: of the bridge any value lets pods' packets pass"),
	}, map[string]string{
		"others set it: portmap, for host ports on 127.0.0.1": "route_localnet",
		"who may send what is the administrator's to say, and pods' packets all pass": "accept_local accept_redirects accept_source_route secure_redirects send_redirects " +
			"shared_media drop_gratuitous_arp drop_unicast_in_l2_multicast src_valid_mark " +
			"log_martians",
		"the gateway's address is the bridge's only one, and answered for": "arp_accept arp_announce arp_evict_nocarrier arp_filter proxy_arp " +
			"proxy_arp_pvlan medium_id",
		"of multicast and broadcast, which is not routed": "bc_forwarding bootp_relay mc_forwarding force_igmp_version " +
			"igmpv2_unsolicited_report_interval igmpv3_unsolicited_report_interval",
		"IPsec is the administrator's": "disable_policy disable_xfrm",
		"of no use here: a device of ours has one address, and is up as long as pods are there": "promote_secondaries ignore_routes_with_linkdown tag",
	}),
	parameters("net/ipv6/conf", []Attribute{
		parameter("accept_ra", "0"), parameter("disable_ipv6", "0"), parameter("mtu", "that of the device"),
		parameter("accept_dad", "of the bridge, 0"), parameter("ndisc_notify", "of the bridge, 1"),
		parameter("hop_limit", "of overlay devices, 32 to 255"),
	}, map[string]string{
		"of router advertisements, which are not accepted": "accept_ra_defrtr accept_ra_from_local accept_ra_min_hop_limit accept_ra_min_lft " +
			"accept_ra_mtu accept_ra_pinfo accept_ra_rt_info_max_plen accept_ra_rt_info_min_plen " +
			"accept_ra_rtr_pref ra_defrtr_metric ra_honor_pio_life ra_honor_pio_pflag autoconf " +
			"router_probe_interval router_solicitation_delay router_solicitation_interval " +
			"router_solicitation_max_interval router_solicitations accept_untracked_na",
		"conf/all decides whether the node forwards": "forwarding force_forwarding",
		"of addresses that the kernel makes by itself: ours are written": "addr_gen_mode dad_transmits enhanced_dad keep_addr_on_down max_addresses " +
			"max_desync_factor optimistic_dad regen_max_retry regen_min_advance stable_secret " +
			"temp_prefered_lft temp_valid_lft use_optimistic use_tempaddr use_oif_addrs_only",
		"who may send what is the administrator's to say, and pods' packets pass": "accept_redirects accept_source_route drop_unicast_in_l2_multicast " +
			"drop_unsolicited_na seg6_enabled seg6_require_hmac rpl_seg_enabled ioam6_enabled " +
			"ioam6_id ioam6_id_wide disable_policy",
		"of neighbour discovery, which works with any value": "force_tllao ndisc_evict_nocarrier ndisc_tclass proxy_ndp " +
			"suppress_frag_ndisc",
		"of multicast, which is not routed": "mc_forwarding force_mld_version mldv1_unsolicited_report_interval " +
			"mldv2_unsolicited_report_interval",
		"a device of ours is up as long as pods are there": "ignore_routes_with_linkdown",
	}),
	parameters("net/ipv4/neigh and net/ipv6/neigh", []Attribute{
		parameter("app_solicit", "of the bridge, 0"), parameter("mcast_solicit", "of the bridge, at least 1"),
	}, map[string]string{
		"how soon and how often a known address is asked for again": "base_reachable_time base_reachable_time_ms delay_first_probe_time gc_stale_time " +
			"interval_probe_time_ms locktime retrans_time retrans_time_ms ucast_solicit " +
			"mcast_resolicit",
		"a packet waits for the answer even with 0": "unres_qlen unres_qlen_bytes",
		"of answers for other hosts":                "anycast_delay proxy_delay proxy_qlen",
	}),
}

func parameter(name, value string) Attribute {
	return Attribute{Name: name, Word: name, Fate: Pinned, Note: value}
}

// parameters makes the table of what lies in a directory of /proc/sys.
func parameters(where string, kept []Attribute, reasons map[string]string) Table {
	t := Table{Object: "sysctl", Where: where, Rows: kept}
	for why, names := range reasons {
		for _, name := range strings.Fields(names) {
			t.Rows = append(t.Rows, free(0, name, name, why))
		}
	}
	slices.SortFunc(t.Rows, func(a, b Attribute) int { return strings.Compare(a.Name, b.Name) })
	for i := range t.Rows {
		t.Rows[i].ID = uint16(i)
	}
	return t
}
