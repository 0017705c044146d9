package causes

import (
	"fmt"
	"net/netip"
)

// drawQdisc draws a queueing discipline, or a filter of packets that come or go.
func drawQdisc(d *draw) *cause {
	p := d.somewhere()
	device := d.device(p)
	q := choose(d, "queueing discipline", qdiscs)(d, p, device)
	c := &cause{place: p.name, tokens: [][]string{{device}, q.words}}
	c.steps = []step{inverse(p.name, "tc qdisc", "add", "del", "dev "+device+" "+q.at)}
	c.steps[0].do = words(c.steps[0].do, q.what)
	c.steps[0].before = fmt.Sprintf(readQueue, device) // a discipline makes a queue, which stays
	c.steps[0].undo += "; ip link set dev " + device + " txqueuelen ${OLD:-0}"
	if q.then != "" {
		c.steps = append(c.steps, inverse(p.name, "tc "+q.object, "add", "del", "dev "+device+" "+q.then))
	}
	return c
}

// qdisc is a discipline, and a class or a filter of it.
type qdisc struct {
	at, what     string
	object, then string
	words        []string
}

func fifo(what ...string) func(*draw, place, string) qdisc {
	return func(d *draw, _ place, _ string) qdisc {
		w := d.pick("queue", what...)
		return qdisc{at: "root", what: w, words: kindsOfQdisc}
	}
}

// kindsOfQdisc are those of the kernel here.
var kindsOfQdisc = []string{"pfifo", "bfifo", "tbf", "htb"}

var qdiscs = []option[func(*draw, place, string) qdisc]{
	{"fifo", fifo("pfifo limit 1", "pfifo limit 0", "bfifo limit 500", "bfifo limit 1000000", "pfifo limit 1000")},
	{"tbf", fifo("tbf rate 8kbit burst 1500 limit 3000", "tbf rate 1mbit burst 1000 limit 100000",
		"tbf rate 1gbit burst 100k limit 1m")},
	{"htb", func(d *draw, _ place, device string) qdisc {
		return qdisc{at: "root handle 1:", what: "htb default 10", words: kindsOfQdisc, object: "class",
			then: "parent 1: classid 1:10 htb rate " + d.pick("htb rate", "8kbit", "1gbit")}
	}},
	{"filter", func(d *draw, p place, device string) qdisc {
		f := d.family()
		to := map[string]string{"lo": "lo", "itself": device}[d.pick("redirected to", "lo", "itself")]
		match := "match u32 0 0"
		if d.chance(60) {
			addr := netip.PrefixFrom(d.anyPod().addr[f], f.bits())
			match = fmt.Sprintf("match %s %s %s", map[family]string{ip4: "ip", ip6: "ip6"}[f], d.pick("u32", "dst",
				"src"), addr)
		}
		return qdisc{at: "clsact", words: []string{"filter", "clsact", "u32", "mirred"}, object: "filter",
			then: fmt.Sprintf("%s protocol %s pref 7 u32 %s action mirred egress redirect dev %s",
				d.pick("filter's side", "ingress", "egress"), map[family]string{ip4: "ip", ip6: "ipv6"}[f], match, to)}
	}},
}

// drawXFRM draws a policy of IPsec.
func drawXFRM(d *draw) *cause {
	p, f := d.somewhere(), d.family()
	dir := d.pick("direction", "in", "out", "fwd")
	c := &cause{place: p.name}
	if d.chance(10) {
		d.seen.note("default policy", []string{dir}, 0)
		set := "ip xfrm policy setdefault " + dir + " "
		c.steps = []step{{in: p.name, do: set + "block", undo: set + "accept"}}
		c.tokens = [][]string{{dir}, {"default", "setdefault", "getdefault"}}
		return c
	}
	src, dst := d.traffic(f), d.traffic(f)
	selector := fmt.Sprintf("src %s dst %s", src, dst)
	if proto := d.pick("proto of a policy", "", "", "proto tcp", "proto udp", "proto icmp"); proto != "" {
		selector += " " + proto
	}
	what := d.pick("policy", "action block", "action block", "template", "allow")
	switch what {
	case "template":
		what = fmt.Sprintf("tmpl src %s dst %s proto esp mode tunnel", d.world.nodes[0].addr[f],
			d.world.nodes[1].addr[f])
	case "allow":
		what = "action allow"
	}
	s := inverse(p.name, "ip "+f.flag()+" xfrm policy", "add", "delete", selector+" dir "+dir)
	s.do = words(s.do, what)
	c.steps = []step{s}
	c.tokens = [][]string{destinations(src), destinations(dst), {dir}}
	return c
}

// traffic is the prefix of a policy's side.
func (d *draw) traffic(f family) string {
	switch d.pick("traffic", "all", "cluster", "subnet", "pod", "node") {
	case "all":
		return map[family]string{ip4: "0.0.0.0/0", ip6: "::/0"}[f]
	case "cluster":
		return d.world.cluster[f].String()
	case "subnet":
		return d.anyNode().subnet[f].String()
	case "pod":
		return netip.PrefixFrom(d.anyPod().addr[f], f.bits()).String()
	}
	return netip.PrefixFrom(d.anyNode().addr[f], f.bits()).String()
}
