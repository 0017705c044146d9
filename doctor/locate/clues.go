package locate

import "regexp"

// clue says which kinds of objects can have lost a packet, the likeliest first.
type clue struct {
	kinds []Kind
	words *regexp.Regexp // of which a sysctl's name must have one; nil: any
}

// told is what the kernel says about a drop, and what that is a clue to.
type told struct {
	says *regexp.Regexp // the reason, or the function
	clue
}

// drops are the classes of what the kernel says, the first that fits counts. The names are those of enum
// skb_drop_reason and of the kernel's functions, which begin with the part of the kernel that they belong to.
var drops = []told{
	tell(`XFRM|xfrm`, ``, IPsec, Sysctl),
	tell(`NETFILTER|nf_|nft_|ipt_|ebt_|arpt_`, `bridge_nf|nf_`, Rule, Sysctl),
	tell(`RPFILTER`, `rp_filter|src_valid_mark`, Sysctl, Route, PolicyRule, Address),
	tell(`LOCALNET|INVALID_SOURCE|LOCAL_SOURCE|INVALID_DEST|martian`, `accept_local|route_localnet|rp_filter|loopback`,
		Address, Sysctl, Route, PolicyRule),
	tell(`INHDR|TTL|ip_forward|ip6_forward`, `ttl|hop_limit|forward`, Sysctl, Rule),
	tell(`NOROUTES|INADDRERRORS|IPV6DISABLED|ip_error|ip6_pkt|dst_discard|ip_rcv_finish|ip6_rcv|_route_|ip_rcv_core`,
		`forward|disable|route|accept_source|shared_media|medium_id`, Route, PolicyRule, Sysctl, Address),
	tell(`NEIGH|ARP|NDISC|arp_|ndisc|neigh`, `arp|neigh|ndisc|proxy|disable_ipv6|drop_`, Neighbour, Link, Address,
		Sysctl, PolicyRule, Route, BridgePort),
	tell(`OTHERHOST`, `^$`, Neighbour, Link, FDB, Address),
	tell(`QDISC|TC_|XDP|tcf|sch_|qdisc|_enqueue|dev_xmit|dev_queue`, `^$`, Qdisc, Link),
	tell(`PKT_TOO|TOO_BIG|MTU|exceeds`, `mtu|pmtu`, Link, Route, Sysctl),
	tell(`BRIDGE|VLAN|LOCKED|STP|br_`, `bridge`, BridgePort, FDB, Link, Neighbour, Sysctl),
	tell(`FRAG|frag|defrag`, `frag`, Sysctl, Rule),
	tell(`VXLAN|vxlan|NO_TX_TARGET`, `vxlan`, FDB, Neighbour, Link),
	tell(`DEV_|dev_|netif|veth|HDR_TRUNC`, `backlog|busy`, Link, Qdisc, Sysctl),
	tell(`SOCKET|TCP|UDP|ICMP|tcp_|udp_|icmp|raw|ping_`, `tcp|udp|icmp|ping|mem|echo|syn`, Sysctl, Socket),
}

func tell(says, words string, kinds ...Kind) told {
	t := told{regexp.MustCompile(says), clue{kinds: kinds}}
	if words != "" {
		t.words = regexp.MustCompile(words)
	}
	return t
}

// clueOf returns what a drop is a clue to: its reason, and if that says nothing, the function.
func clueOf(d Drop) (clue, bool) {
	for _, text := range []string{d.Reason, d.Function} {
		for _, t := range drops {
			if text != "" && t.says.MatchString(text) {
				return t.clue, true
			}
		}
	}
	return clue{}, false
}

// Where packets end without a word of the kernel, the place is the clue.
var (
	// unsent: the sender's namespace sent nothing.
	unsent = clue{kinds: []Kind{Route, PolicyRule, Address, Neighbour, Link, IPsec, Qdisc, Sysctl}}
	// unheard: it left one namespace, and did not come into the next.
	unheard = clue{kinds: []Kind{Link, Qdisc, BridgePort, FDB, Neighbour}, words: regexp.MustCompile(`^$`)}
	// inside: it came into a namespace, and did not leave it.
	inside = clue{kinds: []Kind{BridgePort, FDB, Neighbour, Sysctl, Qdisc, Route, PolicyRule, IPsec, Link, Address}}
	// unanswered: it came to the receiver's namespace, and no socket answered.
	unanswered = clue{kinds: []Kind{Sysctl, Neighbour, Route, PolicyRule, IPsec, Address, Socket, Qdisc, Link}}
)

// addressed: it left with a MAC that no namespace behind has.
var addressed = clue{kinds: []Kind{Link, Sysctl, FDB, Address, BridgePort},
	words: regexp.MustCompile(`arp|neigh|ndisc|proxy|disable_ipv6`)}

// protocolWords are those that sysctls of a protocol have in their names.
var protocolWords = map[string]*regexp.Regexp{
	"icmp": regexp.MustCompile(`icmp|echo|ping`),
	"tcp":  regexp.MustCompile(`tcp|syn|mem`),
	"udp":  regexp.MustCompile(`udp|mem`),
}
