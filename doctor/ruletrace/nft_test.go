package ruletrace

import (
	"os/exec"
	"testing"

	"github.com/twill-net/twill/doctor/locate"
)

// echo is the Hit of an echo request that the node forwards from A to B.
func echo(family, hook, verdict string, stops bool, rewrote string) locate.Hit {
	return locate.Hit{Family: family, Hook: hook, Verdict: verdict, Stops: stops, Rewrote: rewrote, Src: a4, Dst: b4, Proto: 1}
}

// through adds the devices.
func through(h locate.Hit, in, out string) locate.Hit {
	h.In, h.Out = in, out
	return h
}

var nftLosses = map[string]loss{
	"inet": {
		rules: base("inet", "forward", "nft add rule inet fw forward icmp type echo-request counter drop"), to: b4,
		text: "inet fw forward handle HANDLE: icmp type echo-request counter drop",
		fix:  "nft delete rule inet fw forward handle HANDLE",
		want: through(echo("inet", "forward", "drop", true, ""), "br0", "b0"),
	},
	"inet policy": {
		rules: base("inet", "forward", "nft chain inet fw forward '{ policy drop; }'"), to: b4,
		text: "inet fw forward: policy drop", fix: "nft chain inet fw forward '{ policy accept; }'",
		want: through(echo("inet", "forward", "policy drop", true, ""), "br0", "b0"),
	},
	"ip raw": {
		rules: []string{"nft add table ip fw", "nft add chain ip fw early '{ type filter hook prerouting priority -300; }'",
			"nft add rule ip fw early ip daddr { 10.2.0.2, 10.2.0.9 } drop"}, to: b4,
		text: "ip fw early handle HANDLE: ip daddr { 10.2.0.2, 10.2.0.9 } drop", fix: "nft delete rule ip fw early handle HANDLE",
		want: through(echo("ip", "prerouting", "drop", true, ""), "br0", ""),
	},
	"ip lowest": {
		rules: []string{"nft add table ip fw", "nft add chain ip fw first '{ type filter hook prerouting priority -2147483648; }'",
			"nft add rule ip fw first icmp type echo-request drop"}, to: b4,
		text: "ip fw first handle HANDLE: icmp type echo-request drop", fix: "nft delete rule ip fw first handle HANDLE",
		want: echo("ip", "prerouting", "drop", true, ""),
	},
	"jump": {
		rules: base("ip", "postrouting", "nft add chain ip fw own", "nft add chain ip fw 'deep'", "nft add rule ip fw own jump deep",
			"nft add rule ip fw deep meta length 1000-1400 drop", "nft add rule ip fw postrouting ip protocol icmp jump own"), to: b4, size: 1200,
		text: "ip fw deep handle HANDLE: meta length 1000-1400 drop", fix: "nft delete rule ip fw deep handle HANDLE",
		want: through(echo("ip", "postrouting", "drop", true, ""), "br0", "b0"),
	},
	"goto policy": {
		rules: base("ip", "forward", "nft chain ip fw forward '{ policy drop; }'", "nft add chain ip fw own", "nft add rule ip fw own counter",
			"nft add rule ip fw forward goto own"), to: b4,
		text: "ip fw forward: policy drop", fix: "nft chain ip fw forward '{ policy accept; }'",
		want: echo("ip", "forward", "policy drop", true, ""),
	},
	"reject": {
		rules: base("inet", "forward", "nft add rule inet fw forward ip daddr 10.2.0.0/24 reject"), to: b4,
		text: "inet fw forward handle HANDLE: ip daddr 10.2.0.0/24 reject with icmp port-unreachable", fix: "nft delete rule inet fw forward handle HANDLE",
		want: echo("inet", "forward", "reject", true, ""),
	},
	"input": {
		rules: base("inet", "input", "nft add rule inet fw input icmp type echo-request drop"), to: node4,
		text: "inet fw input handle HANDLE: icmp type echo-request drop", fix: "nft delete rule inet fw input handle HANDLE",
		want: locate.Hit{Family: "inet", Hook: "input", Verdict: "drop", Stops: true, In: "br0", Src: a4, Dst: node4, Proto: 1},
	},
	"output": {
		rules: base("inet", "output", "nft add rule inet fw output icmp type echo-reply drop"), to: node4,
		text: "inet fw output handle HANDLE: icmp type echo-reply drop", fix: "nft delete rule inet fw output handle HANDLE",
		want: locate.Hit{Family: "inet", Hook: "output", Verdict: "drop", Stops: true, Out: "br0", Src: node4, Dst: a4, Proto: 1},
	},
	"ip6": {
		rules: base("ip6", "forward", "nft add rule ip6 fw forward ip6 daddr fd02::/64 drop"), to: b6,
		text: "ip6 fw forward handle HANDLE: ip6 daddr fd02::/64 drop", fix: "nft delete rule ip6 fw forward handle HANDLE",
		want: locate.Hit{Family: "ip6", Hook: "forward", Verdict: "drop", Stops: true, In: "br0", Out: "b0", Src: a6, Dst: b6, Proto: 58},
	},
	"bridge": {
		rules: base("bridge", "forward", "nft add rule bridge fw forward ip daddr 10.1.0.3 drop"), to: c4,
		text: "bridge fw forward handle HANDLE: ip daddr 10.1.0.3 drop", fix: "nft delete rule bridge fw forward handle HANDLE",
		want: locate.Hit{Family: "bridge", Hook: "forward", Verdict: "drop", Stops: true, In: "a0", Out: "c0", Src: a4, Dst: c4, Proto: 1},
	},
	"bridge policy": {
		rules: base("bridge", "prerouting", "nft chain bridge fw prerouting '{ policy drop; }'"), to: c6,
		text: "bridge fw prerouting: policy drop", fix: "nft chain bridge fw prerouting '{ policy accept; }'",
		want: locate.Hit{Family: "bridge", Hook: "prerouting", Verdict: "policy drop", Stops: true},
	},
	"netdev": {
		rules: base("netdev", "ingress", "nft add rule netdev fw ingress ip saddr 10.1.0.2 drop"), to: b4,
		text: "netdev fw ingress handle HANDLE: ip saddr 10.1.0.2 drop", fix: "nft delete rule netdev fw ingress handle HANDLE",
		want: through(echo("netdev", "ingress", "drop", true, ""), "a0", ""),
	},
	"netdev egress": {
		rules: base("netdev", "egress", "nft add rule netdev fw egress icmp type echo-reply drop"), to: b4,
		text: "netdev fw egress handle HANDLE: icmp type echo-reply drop", fix: "nft delete rule netdev fw egress handle HANDLE",
		want: locate.Hit{Family: "netdev", Hook: "egress", Verdict: "drop", Stops: true, Out: "a0", Src: b4, Dst: a4, Proto: 1},
	},
	"netdev fwd": {
		rules: base("netdev", "ingress", "nft add rule netdev fw ingress icmp type echo-request fwd to c0"), to: b4,
		text: "netdev fw ingress handle HANDLE: icmp type echo-request fwd to \"c0\"", fix: "nft delete rule netdev fw ingress handle HANDLE",
		want: echo("netdev", "ingress", "fwd", true, ""),
	},
	"inet ingress": {
		rules: []string{"nft add table inet fw", "nft add chain inet fw in '{ type filter hook ingress device a0 priority 0; policy drop; }'"}, to: b4,
		text: "inet fw in: policy drop", fix: "nft chain inet fw in '{ policy accept; }'",
		want: locate.Hit{Family: "inet", Hook: "ingress", Verdict: "policy drop", Stops: true},
	},
	"ttl": {
		rules: base("inet", "prerouting", "nft add rule inet fw prerouting ip daddr 10.2.0.2 ip ttl set 1"), to: b4,
		text: "inet fw prerouting handle HANDLE: ip daddr 10.2.0.2 ip ttl set 1", fix: "nft delete rule inet fw prerouting handle HANDLE",
		want: echo("inet", "prerouting", "continue", false, "ttl 64 to 1"),
	},
	"ttl of the second rule": {
		rules: base("inet", "prerouting", "nft add rule inet fw prerouting counter", "nft add rule inet fw prerouting ip daddr 10.2.0.2 ip ttl set 1 accept",
			"nft add rule inet fw prerouting counter"), to: b4,
		text: "inet fw prerouting handle HANDLE: ip daddr 10.2.0.2 ip ttl set 1 accept", fix: "nft delete rule inet fw prerouting handle HANDLE",
		want: echo("inet", "prerouting", "accept", false, "ttl 64 to 1"),
	},
	"hop limit": {
		rules: base("ip6", "prerouting", "nft add rule ip6 fw prerouting ip6 daddr fd02::2 ip6 hoplimit set 1"), to: b6,
		text: "ip6 fw prerouting handle HANDLE: ip6 daddr fd02::2 ip6 hoplimit set 1", fix: "nft delete rule ip6 fw prerouting handle HANDLE",
		want: locate.Hit{Family: "ip6", Hook: "prerouting", Verdict: "continue", Rewrote: "hoplimit 64 to 1"},
	},
	"daddr": {
		rules: base("ip", "prerouting", "nft add rule ip fw prerouting icmp type echo-request ip daddr set 10.2.0.9"), to: b4,
		text: "ip fw prerouting handle HANDLE: icmp type echo-request ip daddr set 10.2.0.9", fix: "nft delete rule ip fw prerouting handle HANDLE",
		want: echo("ip", "prerouting", "continue", false, "daddr 10.2.0.2 to 10.2.0.9"),
	},
	"dnat": {
		rules: []string{"nft add table ip fw", "nft add chain ip fw nat1 '{ type nat hook prerouting priority dstnat; }'",
			"nft add rule ip fw nat1 icmp type echo-request counter dnat to 10.2.0.9"}, to: b4,
		text: "ip fw nat1 handle HANDLE: icmp type echo-request counter dnat to 10.2.0.9", fix: "nft delete rule ip fw nat1 handle HANDLE",
		want: echo("ip", "prerouting", "accept", false, "daddr 10.2.0.2 to 10.2.0.9"),
	},
	"snat": {
		rules: []string{"nft add table ip fw", "nft add chain ip fw nat2 '{ type nat hook postrouting priority srcnat; }'",
			"nft add rule ip fw nat2 ip daddr 10.2.0.2 snat to 10.2.0.77"}, to: b4,
		text: "ip fw nat2 handle HANDLE: ip daddr 10.2.0.2 snat to 10.2.0.77", fix: "nft delete rule ip fw nat2 handle HANDLE",
		want: echo("ip", "postrouting", "accept", false, "saddr 10.1.0.2 to 10.2.0.77"),
	},
	"mark": {
		rules: base("inet", "prerouting", "ip rule add fwmark 5 blackhole", "nft add rule inet fw prerouting ip daddr 10.2.0.2 meta mark set 5"), to: b4,
		text: "inet fw prerouting handle HANDLE: ip daddr 10.2.0.2 meta mark set 0x00000005", fix: "nft delete rule inet fw prerouting handle HANDLE",
		want: echo("inet", "prerouting", "continue", false, "mark 0x0 to 0x5"),
	},
	"ether daddr": {
		rules: base("bridge", "prerouting", "nft add rule bridge fw prerouting icmp type echo-request ether daddr set 02:00:00:00:00:99"), to: b4,
		text: "bridge fw prerouting handle HANDLE: icmp type echo-request ether daddr set 02:00:00:00:00:99", fix: "nft delete rule bridge fw prerouting handle HANDLE",
		want: locate.Hit{Family: "bridge", Hook: "prerouting", Verdict: "continue", Rewrote: "ether daddr"},
	},
	"packet type": {
		rules: []string{"nft add table netdev fw", "nft add chain netdev fw ingress '{ type filter hook ingress device b0 priority 0; }'", // a bridge would set it anew
			"nft add rule netdev fw ingress ip saddr 10.2.0.2 meta pkttype set other"}, to: b4,
		text: "netdev fw ingress handle HANDLE: ip saddr 10.2.0.2 meta pkttype set other", fix: "nft delete rule netdev fw ingress handle HANDLE",
		want: locate.Hit{Family: "netdev", Hook: "ingress", Verdict: "continue", Rewrote: Retyped, Src: b4, Dst: a4, Proto: 1},
	},
	"netdev ttl": {
		rules: base("netdev", "ingress", "nft add rule netdev fw ingress counter", "nft add rule netdev fw ingress ip saddr 10.1.0.2 ip ttl set 1"), to: b4,
		text: "netdev fw ingress handle HANDLE: ip saddr 10.1.0.2 ip ttl set 1", fix: "nft delete rule netdev fw ingress handle HANDLE",
		want: echo("netdev", "ingress", "continue", false, "ttl 64 to 1"),
	},
	"neighbour discovery": {
		rules: base("bridge", "forward", "nft add rule bridge fw forward icmpv6 type nd-neighbor-solicit drop", "ip netns exec ruletrace-a ip neigh flush all"), to: c6,
		text: "bridge fw forward handle HANDLE: icmpv6 type nd-neighbor-solicit drop", fix: "nft delete rule bridge fw forward handle HANDLE",
		want: locate.Hit{Family: "bridge", Hook: "forward", Verdict: "drop", Stops: true},
	},
	"arp of the bridge": {
		rules: base("bridge", "forward", "nft add rule bridge fw forward ether type arp drop", "ip netns exec ruletrace-a ip neigh flush all"), to: c4,
		text: "bridge fw forward handle HANDLE: ether type arp drop", fix: "nft delete rule bridge fw forward handle HANDLE",
		want: locate.Hit{Family: "bridge", Hook: "forward", Verdict: "drop", Stops: true, In: "a0", Out: "c0", Src: a4, Dst: c4},
	},
	"arp": {
		rules: base("arp", "input", "nft add rule arp fw input arp operation request drop", "ip netns exec ruletrace-a ip neigh flush all"), to: node4,
		text: "arp fw input handle HANDLE: arp operation request drop", fix: "nft delete rule arp fw input handle HANDLE",
		want: locate.Hit{Family: "arp", Hook: "input", Verdict: "drop", Stops: true, In: "br0", Src: a4, Dst: node4},
	},
	"a name that a shell would read": {
		rules: []string{"nft add table inet fw", "nft add chain inet fw 'a/b.c' '{ type filter hook forward priority 0; policy drop; }'"}, to: b4,
		text: "inet fw a/b.c: policy drop", fix: "nft chain inet fw a/b.c '{ policy accept; }'",
		want: echo("inet", "forward", "policy drop", true, ""),
	},
}

// TestNFT: rules of nft that lose real packets are found, and their fixes let packets pass.
func TestNFT(t *testing.T) {
	need(t, "nft")
	for name, l := range nftLosses {
		t.Run(name, func(t *testing.T) {
			wire(t)
			check(t, l)
		})
	}
}

// TestIPTables: rules of the tools of x_tables, in either variant.
func TestIPTables(t *testing.T) {
	for name, l := range map[string]struct {
		loss
		tool string
	}{
		"nft": {loss{
			rules: []string{"iptables-nft -A FORWARD -p tcp -j ACCEPT", "iptables-nft -A FORWARD -d 10.2.0.2/32 -m comment --comment 'it'\"'\"'s $(a) \"b\"' -j DROP"},
			to:    b4,
			text:  `iptables filter FORWARD: -A FORWARD -d 10.2.0.2/32 -m comment --comment "it\'s $(a) \"b\"" -j DROP (handle HANDLE)`,
			fix:   `iptables -t filter -D FORWARD -d 10.2.0.2/32 -m comment --comment 'it'\''s $(a) "b"' -j DROP`,
			want:  through(echo("ip", "forward", "drop", true, ""), "br0", "b0"),
		}, "iptables-nft"},
		"nft policy": {loss{
			rules: []string{"iptables-nft -P FORWARD DROP"}, to: b4,
			text: "iptables filter FORWARD: policy DROP", fix: "iptables -P FORWARD ACCEPT",
			want: echo("ip", "forward", "policy drop", true, ""),
		}, "iptables-nft"},
		"nft jump": {loss{
			rules: []string{"iptables-nft -t mangle -N own", "iptables-nft -t mangle -A own -m length --length 1000:65535 -j DROP",
				"iptables-nft -t mangle -A FORWARD -j own"}, to: b4, size: 1300,
			text: "iptables mangle own: -A own -m length --length 1000:65535 -j DROP (handle HANDLE)",
			fix:  "iptables -t mangle -D own -m length --length 1000:65535 -j DROP",
			want: echo("ip", "forward", "drop", true, ""),
		}, "iptables-nft"},
		"nft reject": {loss{
			rules: []string{"ip6tables-nft -A FORWARD -d fd02::2 -j REJECT"}, to: b6,
			text: "ip6tables filter FORWARD: -A FORWARD -d fd02::2/128 -j REJECT --reject-with icmp6-port-unreachable (handle HANDLE)",
			fix:  "ip6tables -t filter -D FORWARD -d fd02::2/128 -j REJECT --reject-with icmp6-port-unreachable",
			want: locate.Hit{Family: "ip6", Hook: "forward", Verdict: "reject", Stops: true},
		}, "ip6tables-nft"},
		"nft queue": {loss{
			rules: []string{"iptables-nft -A FORWARD -p icmp -j NFQUEUE --queue-num 7"}, to: b4,
			text: "iptables filter FORWARD: -A FORWARD -p icmp -j NFQUEUE --queue-num 7 (handle HANDLE)",
			fix:  "iptables -t filter -D FORWARD -p icmp -j NFQUEUE --queue-num 7",
			want: echo("ip", "forward", "queue", true, ""),
		}, "iptables-nft"},
		"legacy queue": {loss{
			rules: []string{"iptables-legacy -A FORWARD -p icmp -j NFQUEUE --queue-num 7"}, to: b4,
			text: "iptables-legacy filter FORWARD: -A FORWARD -p icmp -j NFQUEUE --queue-num 7",
			fix:  "iptables-legacy -t filter -D FORWARD -p icmp -j NFQUEUE --queue-num 7",
			want: locate.Hit{Family: "ip", Hook: "forward", Verdict: "queue", Stops: true, Counted: true},
		}, "iptables-legacy"},
		"nft TTL": {loss{
			rules: []string{"iptables-nft -t mangle -A PREROUTING -d 10.2.0.2 -j TTL --ttl-set 1", "iptables-nft -t mangle -A PREROUTING -j LOG"}, to: b4,
			text: "iptables mangle PREROUTING: -A PREROUTING -d 10.2.0.2/32 -j TTL --ttl-set 1 (handle HANDLE)",
			fix:  "iptables -t mangle -D PREROUTING -d 10.2.0.2/32 -j TTL --ttl-set 1",
			want: echo("ip", "prerouting", "continue", false, "ttl 64 to 1"),
		}, "iptables-nft"},
		"nft DNAT": {loss{
			rules: []string{"iptables-nft -t nat -A PREROUTING -p icmp -d 10.2.0.2 -j DNAT --to-destination 10.2.0.9"}, to: b4,
			text: "iptables nat PREROUTING: -A PREROUTING -d 10.2.0.2/32 -p icmp -j DNAT --to-destination 10.2.0.9 (handle HANDLE)",
			fix:  "iptables -t nat -D PREROUTING -d 10.2.0.2/32 -p icmp -j DNAT --to-destination 10.2.0.9",
			want: echo("ip", "prerouting", "accept", false, "daddr 10.2.0.2 to 10.2.0.9"),
		}, "iptables-nft"},
		"ebtables": {loss{
			rules: []string{"ebtables-nft -A FORWARD -p IPv4 --ip-dst 10.1.0.3 -j DROP"}, to: c4,
			text: "ebtables filter FORWARD: -A FORWARD -p IPv4 --ip-dst 10.1.0.3 -j DROP (handle HANDLE)",
			fix:  "ebtables -t filter -D FORWARD -p IPv4 --ip-dst 10.1.0.3 -j DROP",
			want: locate.Hit{Family: "bridge", Hook: "forward", Verdict: "drop", Stops: true, In: "a0", Out: "c0", Src: a4, Dst: c4, Proto: 1},
		}, "ebtables-nft"},
		"ebtables policy": {loss{
			rules: []string{"ebtables-nft -P FORWARD DROP"}, to: c4,
			text: "ebtables filter FORWARD: policy DROP", fix: "ebtables -P FORWARD ACCEPT",
			want: locate.Hit{Family: "bridge", Hook: "forward", Verdict: "policy drop", Stops: true},
		}, "ebtables-nft"},
		"arptables": {loss{
			rules: []string{"arptables-nft -A INPUT -s 10.1.0.2 -j DROP", "ip neigh flush all", "ip netns exec ruletrace-a ip neigh flush all"}, to: node4,
			text: "arptables filter INPUT: -A INPUT -j DROP -s 10.1.0.2 (handle HANDLE)",
			fix:  "arptables -t filter -D INPUT -j DROP -s 10.1.0.2",
			want: locate.Hit{Family: "arp", Hook: "input", Verdict: "drop", Stops: true, In: "br0", Src: a4, Dst: node4},
		}, "arptables-nft"},
		"legacy arptables": {loss{
			rules: []string{"arptables-legacy -A INPUT -s 10.1.0.2 -i br0 -j DROP", "ip neigh flush all", "ip netns exec ruletrace-a ip neigh flush all"}, to: node4,
			text: "arptables-legacy filter INPUT: -A INPUT -j DROP -i br0 -s 10.1.0.2",
			fix:  "arptables-legacy -t filter -D INPUT -j DROP -i br0 -s 10.1.0.2",
			want: locate.Hit{Family: "arp", Hook: "input", Verdict: "drop", Stops: true, Counted: true},
		}, "arptables-legacy"},
		"legacy": {loss{
			rules: []string{"iptables-legacy -A FORWARD -p tcp -j ACCEPT", "iptables-legacy -A FORWARD -d 10.2.0.2 -j DROP"}, to: b4,
			text: "iptables-legacy filter FORWARD: -A FORWARD -d 10.2.0.2/32 -j DROP",
			fix:  "iptables-legacy -t filter -D FORWARD -d 10.2.0.2/32 -j DROP",
			want: locate.Hit{Family: "ip", Hook: "forward", Verdict: "drop", Stops: true, Counted: true},
		}, "iptables-legacy"},
		"legacy policy": {loss{
			rules: []string{"ip6tables-legacy -P FORWARD DROP"}, to: b6,
			text: "ip6tables-legacy filter FORWARD: policy DROP", fix: "ip6tables-legacy -P FORWARD ACCEPT",
			want: locate.Hit{Family: "ip6", Hook: "forward", Verdict: "policy drop", Stops: true, Counted: true},
		}, "ip6tables-legacy"},
		"legacy TTL": {loss{
			rules: []string{"iptables-legacy -t mangle -A PREROUTING -d 10.2.0.2 -j TTL --ttl-set 1"}, to: b4,
			text: "iptables-legacy mangle PREROUTING: -A PREROUTING -d 10.2.0.2/32 -j TTL --ttl-set 1",
			fix:  "iptables-legacy -t mangle -D PREROUTING -d 10.2.0.2/32 -j TTL --ttl-set 1",
			want: locate.Hit{Family: "ip", Hook: "prerouting", Verdict: "continue", Rewrote: "TTL --ttl-set 1", Counted: true},
		}, "iptables-legacy"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(l.tool); err != nil && name == "legacy arptables" {
				t.Skip(err) // a package of its own, which few machines have
			}
			need(t, l.tool)
			wire(t)
			check(t, l.loss)
		})
	}
}
