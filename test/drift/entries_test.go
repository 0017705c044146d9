//go:build soak

package drift

// routeSetters alter one route. ROUTE is its prefix with type, table and metric; VIA what leads there (gateway, device,
// flags), REST its protocol, scope and source.
var routeSetters = []setter{
	{"route deleted", "ip FAMILY route del ROUTE", "-", "", "", ""},
	{"route mtu", "ip FAMILY route change ROUTE VIA REST mtu VALUE", "700 1280", "", "", ""},
	{"route mtu lock", "ip FAMILY route change ROUTE VIA REST mtu lock VALUE", "700 1280", "", "", ""},
	{"route advmss", "ip FAMILY route change ROUTE VIA REST advmss VALUE", "100 500", "", "", ""},
	{"route window", "ip FAMILY route change ROUTE VIA REST window VALUE", "1000", "", "", ""},
	{"route rtt", "ip FAMILY route change ROUTE VIA REST rtt VALUE", "500", "", "", ""},
	{"route rto_min", "ip FAMILY route change ROUTE VIA REST rto_min VALUE", "500", "", "", ""},
	{"route cwnd", "ip FAMILY route change ROUTE VIA REST cwnd VALUE", "5", "", "", ""},
	{"route initcwnd", "ip FAMILY route change ROUTE VIA REST initcwnd VALUE", "2", "", "", ""},
	{"route initrwnd", "ip FAMILY route change ROUTE VIA REST initrwnd VALUE", "2", "", "", ""},
	{"route ssthresh", "ip FAMILY route change ROUTE VIA REST ssthresh VALUE", "5", "", "", ""},
	{"route reordering", "ip FAMILY route change ROUTE VIA REST reordering VALUE", "5", "", "", ""},
	{"route hoplimit", "ip FAMILY route change ROUTE VIA REST hoplimit VALUE", "1 3", "", "", ""},
	{"route quickack", "ip FAMILY route change ROUTE VIA REST quickack VALUE", "1", "", "", ""},
	{"route features", "ip FAMILY route change ROUTE VIA REST features ecn", "-", "", "", ""},
	{"route realm", "ip FAMILY route change ROUTE VIA REST realm VALUE", "7", "", "", ""},
	{"route proto", "ip FAMILY route change ROUTE VIA proto VALUE", "static 200", "", "", ""},
	{"route type", "ip FAMILY route del ROUTE; ip FAMILY route add VALUE ROUTE",
		"blackhole unreachable prohibit throw", "", "ip FAMILY route del VALUE ROUTE", ""},
	{"route device", "ip FAMILY route change ROUTE dev lo REST", "-", "", "", ""},
	{"route more specific", "ip FAMILY route add VALUE HALF", "blackhole unreachable", "",
		"ip FAMILY route del VALUE HALF", ""},
	{"route table", "ip FAMILY route add ROUTE VIA proto 116 table VALUE", "100 local", "",
		"ip FAMILY route del ROUTE table VALUE", ""},
	{"route pref", "ip FAMILY route change ROUTE VIA REST pref VALUE", "low high", "", "", ""},
	{"route expires", "ip FAMILY route change ROUTE VIA REST expires VALUE", "1 600", "", "", ""},
	{"route congctl", "ip FAMILY route change ROUTE VIA REST congctl reno", "-", "", "", ""},
	{"route nexthops", "ip FAMILY route change ROUTE REST nexthop VIA nexthop dev lo", "-", "", "", ""},
	{"route onlink", "ip FAMILY route change ROUTE VIA REST onlink", "-", "", "", ""},
	{"route src", "ip FAMILY route change ROUTE VIA REST src VALUE", "127.0.0.1 ::1", "", "", ""},
	{"route in place", "ip FAMILY route replace VALUE PREFIX", "blackhole unreachable", "", "", ""},
	{"route flushed", "ip FAMILY route flush table main dev DEV", "-", "", "", ""},
	{"route tos", "ip FAMILY route add ROUTE tos VALUE blackhole", "0x10", "", "ip FAMILY route del ROUTE tos VALUE",
		""},
	{"route metric lower", "ip FAMILY route add blackhole PREFIX metric VALUE", "1 50", "",
		"ip FAMILY route del blackhole PREFIX metric VALUE", ""},
}

// neighSetters alter one neighbour entry ENTRY of a device; MAC is what it has.
var neighSetters = []setter{
	{"neighbour deleted", "ip neigh del ENTRY dev DEV", "-", "", "", ""},
	{"neighbour lladdr", "ip neigh replace ENTRY lladdr VALUE dev DEV nud permanent", "02:00:00:00:00:99", "", "",
		""},
	{"neighbour state", "ip neigh replace ENTRY lladdr MAC dev DEV nud VALUE",
		"stale reachable noarp delay probe failed", "", "", ""},
	{"neighbour router", "ip neigh replace ENTRY lladdr MAC dev DEV nud permanent router", "-", "", "", ""},
	{"neighbour extern_learn", "ip neigh replace ENTRY lladdr MAC dev DEV nud permanent extern_learn", "-", "", "",
		""},
	{"neighbour protocol", "ip neigh replace ENTRY lladdr MAC dev DEV nud permanent protocol 7", "-", "", "", ""},
	{"neighbour managed", "ip neigh replace ENTRY lladdr MAC dev DEV nud permanent managed", "-", "", "", ""},
	{"neighbour flushed", "ip neigh flush dev DEV nud all", "-", "", "", ""},
	{"neighbour added", "ip neigh add ENTRY9 lladdr 02:00:00:00:00:98 dev DEV nud permanent", "-", "",
		"ip neigh del ENTRY9 dev DEV", ""},
	{"neighbour proxy", "ip neigh add proxy ENTRY dev DEV", "-", "", "ip neigh del proxy ENTRY dev DEV", ""},
}

// fdbSetters alter one forwarding entry of a VXLAN device: MAC to DST.
var fdbSetters = []setter{
	{"fdb deleted", "bridge fdb del MAC dev DEV dst DST self", "-", "", "", ""},
	{"fdb dst", "bridge fdb replace MAC dev DEV dst VALUE self permanent", "192.0.2.99", "", "", ""},
	{"fdb port", "bridge fdb replace MAC dev DEV dst DST self permanent port VALUE", "4789", "", "", ""},
	{"fdb vni", "bridge fdb replace MAC dev DEV dst DST self permanent vni VALUE", "77", "", "", ""},
	{"fdb via", "bridge fdb replace MAC dev DEV dst DST self permanent via lo", "-", "", "", ""},
	{"fdb state", "bridge fdb replace MAC dev DEV dst DST self VALUE", "static dynamic", "", "", ""},
	{"fdb router", "bridge fdb replace MAC dev DEV dst DST self permanent router", "-", "", "", ""},
	{"fdb use", "bridge fdb replace MAC dev DEV dst DST self permanent use", "-", "", "", ""},
	{"fdb extern_learn", "bridge fdb replace MAC dev DEV dst DST self permanent extern_learn", "-", "", "", ""},
	{"fdb default", "bridge fdb append 00:00:00:00:00:00 dev DEV dst VALUE self permanent", "192.0.2.98", "",
		"bridge fdb del 00:00:00:00:00:00 dev DEV dst VALUE self", ""},
	{"fdb added", "bridge fdb append 02:00:00:00:00:09 dev DEV dst DST self permanent", "-", "",
		"bridge fdb del 02:00:00:00:00:09 dev DEV dst DST self", ""},
}

// podSetters alter what leads from the bridge DEV to a pod: its address POD, its MAC, its port PORT; another port is
// OTHER.
var podSetters = []setter{
	{"pod neighbour", "ip neigh replace POD lladdr VALUE dev DEV nud permanent", "02:00:00:00:00:99", "",
		"ip neigh del POD dev DEV", ""},
	{"pod neighbour noarp", "ip neigh replace POD lladdr VALUE dev DEV nud noarp", "02:00:00:00:00:99", "",
		"ip neigh del POD dev DEV", ""},
	{"pod fdb", "bridge fdb replace MAC dev OTHER master static", "-", "", "bridge fdb del MAC dev OTHER master", ""},
	{"pod fdb local", "bridge fdb replace MAC dev OTHER master permanent", "-", "",
		"bridge fdb del MAC dev OTHER master", ""},
	{"pod route", "ip route add VALUE POD", "blackhole unreachable", "", "ip route del VALUE POD", ""},
	{"pod arp", "bridge link set dev PORT learning off flood off; bridge fdb del MAC dev PORT master", "-", "",
		"bridge link set dev PORT learning on flood on", ""},
	{"pod neighbour deleted",
		"ip neigh del POD dev DEV; ip neigh add POD dev DEV nud noarp lladdr 02:00:00:00:00:97", "-", "",
		"ip neigh del POD dev DEV", ""},
	{"pod vlan", "bridge vlan VALUE dev PORT vid 1", "del add", "", "bridge vlan add dev PORT vid 1 pvid untagged",
		""},
	{"pod vlan added", "bridge vlan add dev PORT vid VALUE", "5 77", "", "bridge vlan del dev PORT vid VALUE", ""},
	{"pod group", "bridge mdb add dev DEV port PORT grp VALUE permanent", "239.1.1.1 ff0e::77", "",
		"bridge mdb del dev DEV port PORT grp VALUE permanent", ""},
	{"pod port deleted", "ip link del dev PORT", "-", "", "true", ""},
	{"pod unplugged", "ip link set dev PORT nomaster", "-", "", "ip link set dev PORT master DEV", ""},
	{"pod port down", "ip link set dev PORT down", "-", "", "ip link set dev PORT up", ""},
}

// tableSetters alter a table of nftables with CHAIN one of its chains. FAMILY is the table's.
var tableSetters = []setter{
	{"nft table deleted", "nft delete table FAMILY TABLE", "-", "", "true", ""},
	{"nft table dormant", "nft 'add table FAMILY TABLE { flags dormant; }'", "-", "", "nft 'add table FAMILY TABLE'",
		""},
	{"nft table comment", "nft 'delete table FAMILY TABLE; add table FAMILY TABLE { comment \"x\"; }'", "-", "",
		"nft delete table FAMILY TABLE", ""},
	{"nft ruleset flushed", "nft flush ruleset", "-", "", "true", ""},
	{"nft table flushed", "nft flush table FAMILY TABLE", "-", "", "true", ""},
	{"nft chain added", "nft add chain FAMILY TABLE extra", "-", "", "nft delete chain FAMILY TABLE extra", ""},
	{"nft hook added", "nft 'add chain FAMILY TABLE extra { type filter hook VALUE priority 9; policy drop; }'",
		"prerouting input forward output postrouting", "", "nft delete chain FAMILY TABLE extra", ""},
	{"nft nat hook added",
		"nft 'add chain FAMILY TABLE extra { type nat hook VALUE priority 9; }; add rule FAMILY TABLE extra masquerade'",
		"postrouting", "", "nft delete chain FAMILY TABLE extra", ""},
	{"nft set added", "nft 'add set FAMILY TABLE extra { type ipv4_addr; elements = { 192.0.2.9 }; }'", "-", "",
		"nft delete set FAMILY TABLE extra", ""},
	{"nft map added", "nft 'add map FAMILY TABLE extra { type ipv4_addr : verdict; }'", "-", "",
		"nft delete map FAMILY TABLE extra", ""},
	{"nft counter added", "nft add counter FAMILY TABLE extra", "-", "", "nft delete counter FAMILY TABLE extra", ""},
	{"nft quota added", "nft 'add quota FAMILY TABLE extra { over 1 mbytes; }'", "-", "",
		"nft delete quota FAMILY TABLE extra", ""},
	{"nft flowtable added", "nft 'add flowtable FAMILY TABLE extra { hook ingress priority 0; devices = { lo }; }'",
		"-", "",
		"nft delete flowtable FAMILY TABLE extra", ""},
	{"nft twin table",
		"nft 'add table inet TABLE; add chain inet TABLE extra { type filter hook forward priority 9; policy drop; }'",
		"-", "",
		"nft delete table inet TABLE", ""},
}

// nftSetters alter a chain of nftables.
var nftSetters = []setter{
	{"nft chain flushed", "nft flush chain FAMILY TABLE CHAIN", "-", "", "true", ""},
	{"nft chain deleted", "nft flush chain FAMILY TABLE CHAIN; nft delete chain FAMILY TABLE CHAIN", "-", "", "true",
		""},
	{"nft chain renamed", "nft rename chain FAMILY TABLE CHAIN renamed", "-", "",
		"nft rename chain FAMILY TABLE renamed CHAIN", ""},
	{"nft policy", "nft 'add chain FAMILY TABLE CHAIN { policy drop; }'", "-", "",
		"nft 'add chain FAMILY TABLE CHAIN { policy accept; }'", ""},
	{"nft rule added", "nft add rule FAMILY TABLE CHAIN counter VALUE", "drop accept return", "", "true", ""},
	{"nft rule inserted", "nft insert rule FAMILY TABLE CHAIN counter VALUE", "drop accept return", "", "true", ""},
	{"nft jump inserted", "nft 'add chain FAMILY TABLE extra { drop; }; insert rule FAMILY TABLE CHAIN jump extra'",
		"-", "", "true", ""},
}

// ruleSetters alter the rule HANDLE of a chain of nftables.
var ruleSetters = []setter{
	{"nft rule deleted", "nft delete rule FAMILY TABLE CHAIN handle HANDLE", "-", "", "true", ""},
	{"nft rule replaced", "nft replace rule FAMILY TABLE CHAIN handle HANDLE counter VALUE", "drop accept return",
		"", "true", ""},
	{"nft rule before", "nft insert rule FAMILY TABLE CHAIN handle HANDLE VALUE", "drop accept return", "", "true",
		""},
	{"nft rule after", "nft add rule FAMILY TABLE CHAIN handle HANDLE VALUE", "drop accept return", "", "true", ""},
	{"nft rule limited", "nft insert rule FAMILY TABLE CHAIN handle HANDLE limit rate VALUE drop",
		"1/second 5/second", "", "true", ""},
}

// chainSetters alter CHAIN of iptables: PROGRAM is iptables or ip6tables.
var chainSetters = []setter{
	{"iptables flushed", "PROGRAM -t TABLE -F CHAIN", "-", "", "true", ""},
	{"iptables renamed", "PROGRAM -t TABLE -E CHAIN RENAMED", "-", "", "PROGRAM -t TABLE -E RENAMED CHAIN", ""},
	{"iptables rule deleted", "PROGRAM -t TABLE -D CHAIN 1", "-", "", "true", ""},
	{"iptables rule added", "PROGRAM -t TABLE -A CHAIN -j VALUE", "DROP ACCEPT RETURN", "",
		"PROGRAM -t TABLE -D CHAIN -j VALUE", ""},
	{"iptables rule inserted", "PROGRAM -t TABLE -I CHAIN -j VALUE", "DROP ACCEPT RETURN", "",
		"PROGRAM -t TABLE -D CHAIN -j VALUE", ""},
	{"iptables rule replaced", "PROGRAM -t TABLE -R CHAIN 1 -j VALUE", "DROP ACCEPT RETURN", "", "true", ""},
	{"iptables jump deleted",
		"PROGRAM -t TABLE -S | sed -n 's/^-A \\(.*-j CHAIN.*\\)/PROGRAM -t TABLE -D \\1/p' | head -1 | sh", "-", "",
		"true", ""},
	{"iptables jump doubled",
		"PROGRAM -t TABLE -S | sed -n 's/^-A \\(.*-j CHAIN.*\\)/PROGRAM -t TABLE -A \\1/p' | head -1 | sh", "-", "",
		"true", ""},
	{"iptables jump dropped",
		"PROGRAM -t TABLE -S | sed -n 's/^-A \\([A-Z]*\\) .*-j CHAIN.*/PROGRAM -t TABLE -I \\1 -j DROP/p' | head -1 | sh",
		"-", "", "true", ""},
}

// fileSetters alter a file of the agent's.
var fileSetters = []setter{
	{"file deleted", "rm -f PATH", "-", "", "true", ""},
	{"file truncated", ": >PATH", "-", "", "true", ""},
	{"file mode", "chmod VALUE PATH", "000 666 777", "", "true", ""},
	{"file owner", "chown VALUE PATH", "1 65534:65534", "", "true", ""},
	{"file appended", "echo nonsense >>PATH", "-", "", "true", ""},
	{"file is a directory", "until rm -f PATH; mkdir PATH; do :; done 2>/dev/null", "-", "", "rmdir PATH", ""},
	{"file is a link", "cp PATH PATH.other; ln -sf PATH.other PATH", "-", "", "rm -f PATH PATH.other",
		"rm -f PATH.other"},
	{"file is renamed", "mv PATH PATH.other", "-", "", "mv PATH.other PATH", "rm -f PATH.other"},
	{"file directory moved", "mv DIR DIR.other; sleep 0.1; mkdir -p DIR; cp -a DIR.other/. DIR", "-", "", "true",
		"rm -rf DIR.other"},
	{"file appended with a value", "echo FLANNEL_MTU=VALUE >>PATH", "1200 9000", "", "true", ""},
	{"file replaced", "echo nonsense >PATH.other; mv PATH.other PATH", "-", "", "true", ""},
}
