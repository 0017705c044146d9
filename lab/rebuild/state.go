package rebuild

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// state is a node's kernel, as Collect saw it. All but links are lines of words as ip, bridge and tc take them.
type state struct {
	links                                    []link
	addrs, routes, rules, neighs, fdb, qdisc []line
	gateways                                 map[string]string // of the default routes, by family: -4 or -6
	left                                     []string
}

// line is one object, in words that the program takes after add and del.
type line struct {
	family string // -4 or -6; empty: the words say it
	words  string
}

type link struct {
	Name   string   `json:"ifname"`
	Flags  []string `json:"flags"`
	MTU    int      `json:"mtu"`
	Master string   `json:"master"`
	Type   string   `json:"link_type"`
	MAC    string   `json:"address"`
	Alias  string   `json:"ifalias"`
	Below  string   `json:"link"`
	Info   struct {
		Kind      string          `json:"info_kind"`
		Data      json.RawMessage `json:"info_data"`
		SlaveKind string          `json:"info_slave_kind"`
		Slave     json.RawMessage `json:"info_slave_data"`
	} `json:"linkinfo"`
	Addrs []struct {
		Local string `json:"local"`
		Bits  int    `json:"prefixlen"`
		Scope string `json:"scope"`
	} `json:"addr_info"`
}

func (l link) up() bool { return slices.Contains(l.Flags, "UP") }

type route struct {
	Type     string   `json:"type"`
	Dst      string   `json:"dst"`
	Gateway  string   `json:"gateway"`
	Dev      string   `json:"dev"`
	Table    string   `json:"table"`
	Protocol string   `json:"protocol"`
	Scope    string   `json:"scope"`
	Source   string   `json:"prefsrc"`
	TOS      string   `json:"tos"`
	Metric   int      `json:"metric"`
	Flags    []string `json:"flags"`
	Metrics  []struct {
		MTU int `json:"mtu"`
	} `json:"metrics"`
	Hops json.RawMessage `json:"nexthops"`
	Via  json.RawMessage `json:"via"`
}

type rule struct {
	Priority int    `json:"priority"`
	Src      string `json:"src"`
	SrcBits  *int   `json:"srclen"`
	Dst      string `json:"dst"`
	DstBits  *int   `json:"dstlen"`
	Mark     string `json:"fwmark"`
	Mask     string `json:"fwmask"`
	In       string `json:"iif"`
	Out      string `json:"oif"`
	Table    string `json:"table"`
	Action   string `json:"action"`
	Not      *any   `json:"not"`
}

type entry struct {
	Dst   string `json:"dst"`
	MAC   string `json:"lladdr"`
	Dev   string `json:"dev"`
	Port  int    `json:"port"`
	FDB   string `json:"mac"`
	Name  string `json:"ifname"`
	State any    `json:"state"`
}

type qdisc struct {
	Kind    string          `json:"kind"`
	Dev     string          `json:"dev"`
	Root    bool            `json:"root"`
	Options json.RawMessage `json:"options"`
}

// parse reads the output of Collect, with its names replaced. A program that was not installed saw nothing.
func parse(files map[string][]byte, in names) (s state, err error) {
	read := func(name string, into any) {
		if data := files[name]; err == nil && len(strings.TrimSpace(string(data))) > 0 {
			if err = json.Unmarshal(in.replace(data), into); err != nil {
				err = fmt.Errorf("its %s: %w", name, err)
			}
		}
	}
	s.gateways = map[string]string{}
	var routes, routes6 []route
	var rules, rules6 []rule
	var neighs, fdb []entry
	var qdiscs []qdisc
	read("ip-addr.json", &s.links)
	read("ip-route.json", &routes)
	read("ip-route6.json", &routes6)
	read("ip-rule.json", &rules)
	read("ip-rule6.json", &rules6)
	read("ip-neigh.json", &neighs)
	read("bridge-fdb.json", &fdb)
	read("tc-qdisc.json", &qdiscs)
	s.addAddrs()
	for _, r := range routes {
		s.addRoute("-4", r)
	}
	for _, r := range routes6 {
		s.addRoute("-6", r)
	}
	for _, r := range rules {
		s.addRule("-4", r)
	}
	for _, r := range rules6 {
		s.addRule("-6", r)
	}
	s.addEntries(neighs, fdb)
	s.addQdiscs(qdiscs)
	return s, err
}

// word matches what a value of a report may be: no program takes it for an option, or for more than one word.
var word = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_.:/-]*$`)

// words joins keys and values: a key whose value is empty is left out. Nothing is returned if a value cannot be one word.
func words(pairs ...string) (string, bool) {
	var all []string
	for i := 0; i < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		switch {
		case value == "":
			continue
		case !word.MatchString(value) || len(value) > 64:
			return "", false
		case key != "":
			all = append(all, key)
		}
		all = append(all, value)
	}
	return strings.Join(all, " "), true
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// add appends a line; what is not understood is left out.
func (s *state) add(to *[]line, family, what, text string, ok bool) {
	if !ok {
		s.left = append(s.left, what)
		return
	}
	*to = append(*to, line{family, text})
}

func (s *state) addAddrs() {
	for _, l := range s.links {
		for _, a := range l.Addrs {
			if ip, err := netip.ParseAddr(a.Local); err == nil && !ip.IsLinkLocalUnicast() && !ip.IsLoopback() {
				nodad := map[bool]string{true: "nodad"}[ip.Is6()]
				text, ok := words("", fmt.Sprintf("%s/%d", ip, a.Bits), "dev", l.Name, "", nodad)
				s.add(&s.addrs, "", "address "+a.Local, text, ok)
			}
		}
	}
}

// isPrefix reports whether text is what may stand first in a route.
func isPrefix(text string) bool {
	_, err := netip.ParsePrefix(text)
	_, errAddr := netip.ParseAddr(text)
	return text == "default" || err == nil || errAddr == nil
}

func (s *state) addRoute(family string, r route) {
	switch {
	case r.Table == "local" || slices.Contains([]string{"local", "broadcast", "multicast", "anycast"}, r.Type) ||
		strings.HasPrefix(r.Dst, "fe80:") || strings.HasPrefix(r.Dst, "ff00:"):
		return // the kernel's own
	case r.Type != "":
		r.Dev = ""
	case r.Dst == "default" && r.Table == "" && s.gateways[family] == "":
		s.gateways[family] = r.Gateway
	}
	mtu, onlink := "", ""
	for _, m := range r.Metrics {
		mtu = number(m.MTU)
	}
	if slices.Contains(r.Flags, "onlink") {
		onlink = "onlink"
	}
	text, ok := words("", r.Type, "", r.Dst, "via", r.Gateway, "dev", r.Dev, "table", r.Table, "proto", r.Protocol, "scope", r.Scope,
		"src", r.Source, "tos", r.TOS, "metric", number(r.Metric), "mtu", mtu, "", onlink)
	ok = ok && isPrefix(r.Dst) && len(r.Hops) == 0 && len(r.Via) == 0 &&
		slices.Contains([]string{"", "unicast", "blackhole", "unreachable", "prohibit", "throw"}, r.Type)
	s.add(&s.routes, family, "route "+r.Dst, text, ok)
}

func (s *state) addRule(family string, r rule) {
	length := func(addr string, bits *int) string {
		if bits == nil {
			return addr
		}
		return fmt.Sprintf("%s/%d", addr, *bits)
	}
	mark := r.Mark
	if r.Mask != "" {
		mark += "/" + r.Mask
	}
	text, ok := words("pref", strconv.Itoa(r.Priority), "from", length(r.Src, r.SrcBits), "to", length(r.Dst, r.DstBits),
		"fwmark", mark, "iif", r.In, "oif", r.Out, "lookup", r.Table, "type", r.Action)
	s.add(&s.rules, family, fmt.Sprintf("policy rule %d", r.Priority), text, ok && r.Not == nil)
}

func (s *state) addEntries(neighs, fdb []entry) {
	for _, n := range neighs {
		if ip, err := netip.ParseAddr(n.Dst); err == nil && !ip.IsMulticast() {
			text, ok := words("", n.Dst, "lladdr", n.MAC, "dev", n.Dev, "nud", "permanent")
			s.add(&s.neighs, "", "neighbour "+n.Dst, text, ok)
		}
	}
	for _, f := range fdb {
		if f.Dst != "" {
			text, ok := words("", f.FDB, "dev", f.Name, "dst", f.Dst, "port", number(f.Port), "", "self", "", "permanent")
			s.add(&s.fdb, "", "forwarding entry "+f.FDB, text, ok)
		}
	}
}

func (s *state) addQdiscs(all []qdisc) {
	for _, q := range all {
		var o struct{ Rate, Burst, Lat int }
		switch {
		case slices.Contains([]string{"noqueue", "fq", "fq_codel", "pfifo_fast", "mq"}, q.Kind):
			continue // what devices come with
		case q.Kind != "tbf" || !q.Root || json.Unmarshal(q.Options, &o) != nil:
			s.left = append(s.left, "queueing discipline "+q.Kind+" of "+q.Dev)
			continue
		}
		text, ok := words("dev", q.Dev, "", "root", "", "tbf", "rate", fmt.Sprintf("%dbit", 8*o.Rate), "burst", number(o.Burst),
			"latency", fmt.Sprintf("%dus", o.Lat))
		s.add(&s.qdisc, "", "queueing discipline of "+q.Dev, text, ok)
	}
}
