//go:build soak

package drift

import "strings"

// linkSetters are the attributes of any link, from ip-link(8).
var linkSetters = []setter{
	{"mtu", "ip link set dev DEV mtu VALUE", "1280 1300 1400 9000", "mtu", "", ""},
	{"txqueuelen", "ip link set dev DEV txqueuelen VALUE", "0 1 10 500", "txqlen", "", ""},
	{"address", "ip link set dev DEV address VALUE", "02:00:00:00:00:99 06:11:22:33:44:55", "address", "", ""},
	{"broadcast", "ip link set dev DEV broadcast VALUE", "ff:ff:ff:ff:ff:fe 02:00:00:00:00:01", "broadcast", "", ""},
	{"down", "ip link set dev DEV down", "-", "", "ip link set dev DEV up", ""},
	{"arp", "ip link set dev DEV arp VALUE", "off on", "", "ip link set dev DEV arp on", ""},
	{"multicast", "ip link set dev DEV multicast VALUE", "off on", "", "ip link set dev DEV multicast on", ""},
	{"allmulticast", "ip link set dev DEV allmulticast on", "-", "", "ip link set dev DEV allmulticast off", ""},
	{"promisc", "ip link set dev DEV promisc on", "-", "", "ip link set dev DEV promisc off", ""},
	{"dynamic", "ip link set dev DEV dynamic on", "-", "", "ip link set dev DEV dynamic off", ""},
	{"trailers", "ip link set dev DEV trailers on", "-", "", "ip link set dev DEV trailers off", ""},
	{"carrier", "ip link set dev DEV carrier off", "-", "", "ip link set dev DEV carrier on", ""},
	{"protodown", "ip link set dev DEV protodown on", "-", "", "ip link set dev DEV protodown off", ""},
	{"alias", "ip link set dev DEV alias VALUE", "x somebody's", "ifalias", "", ""},
	{"group", "ip link set dev DEV group VALUE", "7 99", "", "ip link set dev DEV group default", ""},
	{"mode", "ip link set dev DEV mode dormant", "-", "", "ip link set dev DEV mode default", ""},
	{"addrgenmode", "ip link set dev DEV addrgenmode VALUE", "none eui64 random stable_secret",
		"inet6_addr_gen_mode", "", ""},
	{"gso_max_size", "ip link set dev DEV gso_max_size VALUE", "2000 30000", "gso_max_size", "", ""},
	{"gso_max_segs", "ip link set dev DEV gso_max_segs VALUE", "1 10", "gso_max_segs", "", ""},
	{"gro_max_size", "ip link set dev DEV gro_max_size VALUE", "2000 30000", "gro_max_size", "", ""},
	{"name", "ip link set dev DEV name renamed0", "-", "",
		"ip link set dev renamed0 name DEV || ip link del dev renamed0", ""},
	{"netns", "ip netns add driftaway; ip link set dev DEV netns driftaway", "-", "",
		"ip -n driftaway link set dev DEV netns $$ ; ip netns del driftaway; ip link set dev DEV up",
		"ip netns del driftaway"},
	{"delete", "ip link del dev DEV", "-", "", "true", ""},
	{"master", "ip link add driftbr type bridge && ip link set dev DEV master driftbr", "-", "",
		"ip link del driftbr", "ip link del driftbr"},
	{"nomaster", "ip link set dev DEV nomaster", "-", "master", "[ OLD = - ] || ip link set dev DEV master OLD", ""},
	{"sysfs threaded", "unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 1 >/sys/class/net/DEV/threaded'", "-", "",
		"unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 0 >/sys/class/net/DEV/threaded'", ""},
	{"sysfs gro_flush_timeout",
		"unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 1000 >/sys/class/net/DEV/gro_flush_timeout'", "-", "",
		"unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 0 >/sys/class/net/DEV/gro_flush_timeout'", ""},
	{"altname", "ip link property add dev DEV altname driftname", "-", "",
		"ip link property del dev DEV altname driftname", ""},
	{"token", "ip token set ::77 dev DEV", "-", "", "ip token set :: dev DEV", ""},
	{"address flushed", "ip addr flush dev DEV", "-", "", "true", ""},
	{"vlan device", "ip link add link DEV name driftvlan type vlan id 5", "-", "", "ip link del driftvlan",
		"ip link del driftvlan"},
	{"macvlan", "ip link add link DEV name driftmac type macvlan mode VALUE", "private passthru", "",
		"ip link del driftmac", "ip link del driftmac"},
	{"filter", "tc qdisc add dev DEV clsact && tc filter add dev DEV VALUE matchall action drop", "ingress egress",
		"", "tc qdisc del dev DEV clsact", "tc qdisc del dev DEV clsact"},
	{"netem", "tc qdisc add dev DEV root netem loss VALUE", "100% 30%", "", "tc qdisc del dev DEV root", ""},
	{"tbf", "tc qdisc add dev DEV root tbf rate VALUE burst 1600 latency 1ms", "1kbit 10mbit", "",
		"tc qdisc del dev DEV root", ""},
	{"qdisc", "tc qdisc add dev DEV root pfifo limit VALUE", "1 100", "", "tc qdisc del dev DEV root", ""},
}

// underlaySetters alter the device that packets leave by. It is not ours: what follows from it has to.
var underlaySetters = []setter{
	{"underlay mtu", "ip link set dev DEV mtu VALUE", "1400 1450", "mtu", "", ""},
}

// vxlanSetters are the attributes of a VXLAN device, from ip-link(8); the kernel refuses some on a device that exists.
var vxlanSetters = kinds("vxlan", `ttl 3 1 255|ttl inherit|tos 4 16|tos inherit|flowlabel 5|ageing 10 1|learning|
	nolearning|proxy|noproxy|rsc|norsc|l2miss|nol2miss|l3miss|nol3miss|udpcsum|noudpcsum|udp6zerocsumtx|
	noudp6zerocsumtx|udp6zerocsumrx|noudp6zerocsumrx|
	remcsumtx|remcsumrx|df set|df inherit|maxaddress 1 5|id 77|group 239.1.1.1|remote 192.0.2.9|local 192.0.2.9|dev lo|
	dstport 4789|srcport 1000 2000|external|gbp|gpe`)

// bridgeSetters are the attributes of a bridge, from ip-link(8).
var bridgeSetters = kinds("bridge", `forward_delay 200 3000|hello_time 100 1000|max_age 600 4000|ageing_time 0 100|
	stp_state 1|priority 0 100|group_fwd_mask 8 65528|group_address 01:80:c2:00:00:04|vlan_filtering 1|
	vlan_protocol 802.1ad|vlan_default_pvid 0 5|
	vlan_stats_enabled 1|vlan_stats_per_port 1|mcast_router 0 2|mcast_snooping 0|mcast_query_use_ifaddr 1|mcast_querier 1|
	mcast_querier_interval 100|mcast_hash_elasticity 1|mcast_hash_max 16|mcast_last_member_count 5|
	mcast_startup_query_count 5|
	mcast_last_member_interval 500|mcast_membership_interval 500|mcast_query_interval 500|
	mcast_query_response_interval 500|
	mcast_startup_query_interval 500|mcast_stats_enabled 1|mcast_igmp_version 3|mcast_mld_version 2|nf_call_iptables 1|
	nf_call_ip6tables 1|nf_call_arptables 1|no_linklocal_learn 1|fdb_flush`)

// kinds makes setters of lines "NAME VALUE…", separated by bars.
func kinds(kind, lines string) []setter {
	var all []setter
	for line := range strings.SplitSeq(lines, "|") {
		words := strings.Fields(line)
		s := setter{attr: kind + " " + words[0], command: "ip link set dev DEV type " + kind + " " + words[0],
			values: "-", field: words[0]}
		if len(words) > 1 {
			s.command, s.values = s.command+" VALUE", strings.Join(words[1:], " ")
		}
		if on, off := strings.CutPrefix(words[0], "no"); off && len(words) == 1 {
			s.undo = "ip link set dev DEV type " + kind + " " + on
		} else if len(words) == 1 {
			s.undo = "ip link set dev DEV type " + kind + " no" + words[0]
		}
		all = append(all, s)
	}
	return all
}

// portSetters are the attributes of a bridge's port, from bridge(8).
var portSetters = ports(`cost 7 60000|priority 1 63|state 0 1 4|guard on|root_block on|fastleave on|learning off|
	flood off|mcast_flood off|bcast_flood off|mcast_to_unicast on|neigh_suppress on|vlan_tunnel on|isolated on|
	hairpin off|hairpin on|locked on|mab on|mcast_router 0 2|backup_port lo`)

func ports(lines string) []setter {
	var all []setter
	for line := range strings.SplitSeq(lines, "|") {
		words := strings.Fields(line)
		s := setter{attr: "port " + words[0], command: "bridge link set dev DEV " + words[0] + " VALUE",
			values: strings.Join(words[1:], " "), field: words[0]}
		switch words[1] {
		case "on":
			s.undo = "bridge link set dev DEV " + words[0] + " off"
		case "off":
			s.undo = "bridge link set dev DEV " + words[0] + " on"
		}
		all = append(all, s)
	}
	return all
}

// addrSetters alter one address, ADDR with its prefix length, of a device.
var addrSetters = []setter{
	{"address deleted", "ip addr del ADDR dev DEV", "-", "", "ip addr add ADDR dev DEV NODAD", ""},
	{"address valid_lft", "ip addr change ADDR dev DEV valid_lft VALUE preferred_lft VALUE", "4000", "",
		"ip addr change ADDR dev DEV valid_lft forever preferred_lft forever", ""},
	{"address deprecated", "ip addr change ADDR dev DEV preferred_lft 0", "-", "",
		"ip addr change ADDR dev DEV valid_lft forever preferred_lft forever", ""},
	{"address metric", "ip addr change ADDR dev DEV metric VALUE", "50 5000", "",
		"ip addr change ADDR dev DEV metric 0", ""},
	{"address proto", "ip addr change ADDR dev DEV proto VALUE", "7", "", "ip addr change ADDR dev DEV proto 0", ""},
	{"address noprefixroute", "ip addr change ADDR dev DEV noprefixroute", "-", "",
		"ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address scope", "ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD scope VALUE", "link 200", "",
		"ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address label", "ip addr del ADDR dev DEV; ip addr add ADDR dev DEV label DEV:x NODAD", "-", "",
		"ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address added", "ip addr add VALUE dev DEV NODAD", "10.9.9.9/24 192.168.77.1/32 fd99::1/64", "",
		"ip addr del VALUE dev DEV NODAD", ""},
	{"address peer", "ip addr del ADDR dev DEV; ip addr add BARE peer VALUE dev DEV NODAD", "192.0.2.77 fd99::77", "",
		"ip addr flush dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address broadcast", "ip addr del ADDR dev DEV; ip addr add ADDR broadcast VALUE dev DEV NODAD", "+ 10.9.9.255", "",
		"ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address home", "ip addr change ADDR dev DEV home", "-", "",
		"ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address mngtmpaddr", "ip addr change ADDR dev DEV mngtmpaddr", "-", "",
		"ip addr del ADDR dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address length", "ip addr del ADDR dev DEV; ip addr add BARE/VALUE dev DEV NODAD", "16 27 30 32 48 128", "",
		"ip addr flush dev DEV; ip addr add ADDR dev DEV NODAD", ""},
	{"address other device", "ip addr add ADDR dev lo", "-", "", "ip addr del ADDR dev lo", ""},
	{"address beside", "ip addr add NEXT dev DEV NODAD", "-", "", "ip addr del NEXT dev DEV NODAD", ""},
}
