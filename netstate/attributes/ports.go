package attributes

// stp is why what only the spanning tree protocol uses is free.
const stp = "used by the spanning tree protocol only, which is off"

// portTables are the bridge's options of a pod's port, and what a port has beside what every device has. A pinned number is
// what the kernel gives to a new port.
var portTables = []Table{
	{Object: "port", Where: "IFLA_INFO_SLAVE_DATA", Prefix: "IFLA_BRPORT_",
		Path: []uint16{linkInfo, infoSlaveData}, Rows: []Attribute{
			{ID: 1, Name: "STATE", Word: "state", Fate: Pinned, Value: 3,
				Note: "forwarding, while the pod's end is up"},
			free(2, "PRIORITY", "priority", stp), free(3, "COST", "cost", stp),
			field(4, "MODE", "hairpin", "Hairpin"), pinned(5, "GUARD", "guard", 0),
			pinned(6, "PROTECT", "root_block", 0), pinned(7, "FAST_LEAVE", "fastleave", 0),
			field(8, "LEARNING", "learning", "Locked"), pinned(9, "UNICAST_FLOOD", "flood", 1),
			pinned(10, "PROXYARP", "proxy_arp", 0), derived(11, "LEARNING_SYNC", "nothing: no driver reports it"),
			pinned(12, "PROXYARP_WIFI", "proxy_arp_wifi", 0), derived(13, "ROOT_ID", "the spanning tree protocol"),
			derived(14, "BRIDGE_ID", "the spanning tree protocol"),
			derived(15, "DESIGNATED_PORT", "the spanning tree protocol"),
			derived(16, "DESIGNATED_COST", "the spanning tree protocol"), derived(17, "ID", "PRIORITY and NO"),
			derived(18, "NO", "the order in which ports came"),
			derived(19, "TOPOLOGY_CHANGE_ACK", "the spanning tree protocol"),
			derived(20, "CONFIG_PENDING", "the spanning tree protocol"),
			derived(21, "MESSAGE_AGE_TIMER", "the spanning tree protocol"),
			derived(22, "FORWARD_DELAY_TIMER", "the spanning tree protocol"),
			derived(23, "HOLD_TIMER", "the spanning tree protocol"),
			derived(24, "FLUSH", "nothing: only requests have it"), pinned(25, "MULTICAST_ROUTER", "mcast_router", 1),
			pinned(27, "MCAST_FLOOD", "mcast_flood", 1), pinned(28, "MCAST_TO_UCAST", "mcast_to_unicast", 0),
			pinned(29, "VLAN_TUNNEL", "vlan_tunnel", 0), pinned(30, "BCAST_FLOOD", "bcast_flood", 1),
			pinned(31, "GROUP_FWD_MASK", "group_fwd_mask", 0), pinned(32, "NEIGH_SUPPRESS", "neigh_suppress", 0),
			field(33, "ISOLATED", "isolated", "Isolated"), pinned(34, "BACKUP_PORT", "backup_port", 0),
			derived(35, "MRP_RING_OPEN", "the media redundancy protocol"),
			derived(36, "MRP_IN_OPEN", "the media redundancy protocol"),
			free(37, "MCAST_EHT_HOSTS_LIMIT", "mcast_eht_hosts_limit", "beyond it the bridge floods a group"),
			derived(38, "MCAST_EHT_HOSTS_CNT", "the hosts that joined groups"), field(39, "LOCKED", "locked", "Locked"),
			pinned(40, "MAB", "mab", 0), derived(41, "MCAST_N_GROUPS", "the groups that were joined"),
			pinned(42, "MCAST_MAX_GROUPS", "mcast_max_groups", 0),
			pinned(43, "NEIGH_VLAN_SUPPRESS", "neigh_vlan_suppress", 0),
			pinned(44, "BACKUP_NHID", "backup_nhid", 0),
		}},
	{Object: "port", Where: "attributes", Prefix: "IFLA_", Rows: []Attribute{
		{ID: 27, Name: "GROUP", Word: "group", Fate: Pinned, Field: "Addrs", Note: "116, if the plugin noted the pod's addresses"},
	}},
}
