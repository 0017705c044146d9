package fake

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/twill-net/twill/netstate"
)

// Run changes the kernel as another program would: it takes the commands of iproute2 that its tests need, "ip
// link|addr|neigh|route …", "bridge fdb …", and "sysctl -w name=value". What it does not understand is an error.
func (k *Kernel) Run(command string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := words(strings.Fields(command))
	if len(w) < 3 {
		return fmt.Errorf("%q is not a command of ip, bridge or sysctl", command)
	}
	run, ok := map[string]func(words) error{
		"ip link": k.ipLink, "ip addr": k.ipAddr, "ip neigh": k.ipNeigh, "ip route": k.ipRoute, "bridge fdb": k.bridgeFDB,
	}[w[0]+" "+w[1]]
	if w[0] == "sysctl" {
		run, ok = k.sysctlW, true
	}
	if !ok {
		return fmt.Errorf("%q is not a command that the fake knows", command)
	}
	if err := run(w[2:]); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// words are a command's arguments.
type words []string

func (w words) has(word string) bool { return slices.Contains(w, word) }

// after returns the word that follows key, empty if there is none.
func (w words) after(key string) string {
	if i := slices.Index(w, key); i >= 0 && i+1 < len(w) {
		return strings.Trim(w[i+1], "'")
	}
	return ""
}

func (w words) number(key string) int {
	n, _ := strconv.ParseInt(w.after(key), 0, 32)
	return int(n)
}

func (w words) addr(key string) netip.Addr {
	a, _ := netip.ParseAddr(w.after(key))
	return a
}

func (w words) mac(key string) netstate.MAC {
	m, _ := netstate.ParseMAC(w.after(key))
	return m
}

func (k *Kernel) ipLink(w words) error {
	name := w[1]
	if w[0] == "add" {
		return k.ipLinkAdd(name, w)
	}
	l, err := k.link(name)
	if err != nil {
		return err
	}
	switch w[0] {
	case "del":
		k.deleteLink(name)
		return nil
	case "set":
		return k.ipLinkSet(l, w[2:])
	}
	return fmt.Errorf("ip link %s is not a command that the fake knows", w[0])
}

func (k *Kernel) ipLinkAdd(name string, w words) error {
	l := &link{VXLAN: netstate.VXLAN{Name: name, MAC: w.mac("address")}, kind: w.after("type")}
	switch l.kind {
	case "vxlan":
		l.VNI, l.Dev, l.Local, l.Port = w.number("id"), w.after("dev"), w.addr("local"), w.number("dstport")
		l.Learning, l.GBP = !w.has("nolearning"), w.has("gbp")
	case "veth":
		l.peer = w.after("name")
		if err := k.create(&link{VXLAN: netstate.VXLAN{Name: l.peer}, kind: "veth", peer: name}); err != nil {
			return err
		}
	case "bridge":
	default:
		return fmt.Errorf("link type %q: want vxlan, veth or bridge", l.kind)
	}
	return k.create(l)
}

func (k *Kernel) ipLinkSet(l *link, w words) error {
	switch w[0] {
	case "up", "down":
		k.setUp(l, w[0] == "up")
	case "mtu":
		return k.setMTU(l, w.number("mtu"))
	case "address":
		k.setMAC(l, w.mac("address"))
	case "alias":
		l.alias = w.after("alias")
		k.changed(l.Name)
	case "master":
		l.master = w.after("master")
		k.changed(l.Name)
	default:
		return fmt.Errorf("ip link set %s: want up, down, mtu, address, alias or master", w[0])
	}
	return nil
}

func (k *Kernel) ipAddr(w words) error {
	p, err := netip.ParsePrefix(w[1])
	if a, bad := netip.ParseAddr(w[1]); bad == nil {
		p, err = netstate.Host(a), nil
	}
	if err != nil {
		return err
	}
	o := netstate.Addr{Dev: w.after("dev"), Prefix: p, NoDAD: w.has("nodad")}
	if peer := w.after("peer"); peer != "" {
		o.Peer = netip.MustParsePrefix(peer)
	}
	switch {
	case w.after("scope") == "link":
		o.Extra = "scope 253"
	case w.has("valid_lft"):
		o.Extra = "valid_lft " + w.after("valid_lft")
	}
	_, exists := k.entries[o.Key()]
	switch {
	case w[0] == "del" && !exists:
		return syscall.EADDRNOTAVAIL
	case w[0] == "del":
		k.deleteAddr(o)
		return nil
	case w[0] == "add" && exists:
		return syscall.EEXIST
	}
	return k.putEntry(o)
}

func (k *Kernel) ipNeigh(w words) error {
	o := netstate.Neigh{Dev: w.after("dev"), IP: w.addr(w[0]), MAC: w.mac("lladdr")}
	if _, err := k.link(o.Dev); err != nil {
		return err
	}
	if w[0] == "del" || w.after("nud") != "permanent" { // the fake keeps no others
		delete(k.entries, o.Key())
		k.changed(o.Dev)
		return nil
	}
	return k.putEntry(o)
}

func (k *Kernel) bridgeFDB(w words) error {
	o := netstate.FDB{Dev: w.after("dev"), MAC: w.mac(w[0]), Dst: w.addr("dst")}
	if _, err := k.link(o.Dev); err != nil {
		return err
	}
	var extra []string
	if w.has("static") {
		extra = append(extra, "static")
	}
	for _, key := range []string{"port", "vni", "via"} {
		if w.has(key) {
			extra = append(extra, key+" "+w.after(key))
		}
	}
	o.Extra = strings.Join(extra, " ")
	if w[0] == "del" || w.has("dynamic") {
		k.deleteFDB(o)
		return nil
	}
	return k.putFDB(o, w[0] == "replace")
}

func (k *Kernel) sysctlW(w words) error {
	name, value, _ := strings.Cut(w[len(w)-1], "=")
	return k.setSysctl(name, value)
}

// protocols are those of /etc/iproute2/rt_protos that tests use.
var protocols = map[string]int{"": 3, "boot": 3, "static": 4, "bird": 12, "kernel": netstate.KernelProtocol}

func (k *Kernel) ipRoute(w words) error {
	r, err := parseRoute(w[1:])
	if err != nil {
		return err
	}
	switch w[0] {
	case "add", "append", "prepend":
		return k.addRoute(r, w[0])
	case "replace":
		return k.replaceRoute(r)
	case "del":
		if !k.deleteFirst(r.Dev, func(o route) bool {
			return o.table == r.table && o.Dst == r.Dst && o.Blackhole == r.Blackhole &&
				(!w.has("metric") || o.Metric == r.Metric) &&
				(r.Dev == "" || o.Dev == r.Dev) && (!r.Via.IsValid() || o.Via == r.Via)
		}) {
			return syscall.ESRCH
		}
		return nil
	}
	return errors.New("want ip route add, append, prepend, replace or del")
}

func parseRoute(w words) (route, error) {
	kind := ""
	if w[0] == "blackhole" || w[0] == "unreachable" {
		kind, w = w[0], w[1:]
	}
	dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if strings.Contains(strings.Join(w, " "), ":") {
		dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if w[0] != "default" {
		var err error
		if dst, err = netip.ParsePrefix(w[0]); err != nil {
			return route{}, err
		}
	}
	o := netstate.Route{
		Dst: dst, Via: w.addr("via"), Dev: w.after("dev"), Metric: w.number("metric"), Onlink: w.has("onlink"),
		Blackhole: kind == "blackhole", Protocol: protocols[w.after("proto")], TOS: w.number("tos"), Src: w.addr("src"),
	}
	if o.Protocol == 0 {
		o.Protocol = w.number("proto")
	}
	if o.Metric == 0 {
		o.Metric = netstate.DefaultMetric(dst.Addr())
	}
	r := newRoute(o)
	switch {
	case kind == "unreachable":
		r.Extra = "type 7"
		if dst.Addr().Is6() {
			r.Dev = "lo"
		}
	case w.has("nexthop"):
		r.hops = nextHops(w)
		r.Via, r.Dev, r.Extra = netip.Addr{}, "", fmt.Sprintf("multipath %d", len(r.hops))
	case w.after("scope") == "global":
		r.Extra = "scope universe"
	case w.has("mtu"):
		r.MTU = w.number("mtu")
	}
	if w.has("table") {
		r.table = w.number("table")
		r.Table = r.table
	}
	return r, nil
}

func nextHops(w words) (hops []hop) {
	for i, word := range w {
		if word == "nexthop" {
			hops = append(hops, hop{w[i:].addr("via"), w[i:].after("dev")})
		}
	}
	return hops
}
