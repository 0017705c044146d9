package unusual

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/internal/testwait"
)

func TestNothing(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		if all := list(t); len(all) > 0 {
			t.Errorf("nobody altered anything:\n%s", print(all))
		}
	})
}

// injections alter the namespace; each makes one object.
var injections = []struct {
	kind    locate.Kind
	command string
	text    string // the object's begins with it
	about   string
}{
	{locate.PolicyRule, "ip rule add from 10.244.1.0/24 lookup 77 pref 32000", "32000: from 10.244.1.0/24 lookup 77", "10.244.1.0/24"},
	{locate.PolicyRule, "ip rule add to 10.244.2.5 iif unusualbr fwmark 0x1/0xf ipproto tcp dport 80-90 blackhole pref 100",
		"100: from all to 10.244.2.5 fwmark 0x1/0xf iif unusualbr ipproto tcp dport 80-90 blackhole", "10.244.2.5/32"},
	{locate.PolicyRule, "ip -6 rule add not from fd00:244:1::/64 lookup main suppress_prefixlength 0 pref 7",
		"7: not from fd00:244:1::/64 lookup main suppress_prefixlength 0", ""},
	{locate.PolicyRule, "ip rule del pref 32766", "rule 32766 (main) is missing", ""},
	{locate.Route, "ip route add prohibit 10.244.2.0/24 table 77 metric 5", "prohibit 10.244.2.0/24 table 77 metric 5", "10.244.2.0/24"},
	{locate.Route, "ip route add blackhole 10.244.3.0/24", "blackhole 10.244.3.0/24", "10.244.3.0/24"},
	{locate.Route, "ip -6 route add unreachable fd00:244:2::/64", "unreachable fd00:244:2::/64 dev lo metric 1024", "fd00:244:2::/64"},
	{locate.Route, "ip route add 10.244.1.2 via 10.244.1.3 mtu 600", "10.244.1.2 via 10.244.1.3 dev unusualbr mtu 600", "10.244.1.2/32"},
	{locate.Route, "ip route add local 10.244.2.7 dev lo table local", "local 10.244.2.7 dev lo table local", "10.244.2.7/32"},
	{locate.Neighbour, "ip neigh add 10.244.1.2 lladdr 02:00:00:00:00:99 dev unusualbr nud permanent",
		"10.244.1.2 dev unusualbr lladdr 02:00:00:00:00:99 PERMANENT", "10.244.1.2/32"},
	{locate.Neighbour, "ip neigh add fd00:244:1::2 lladdr 02:00:00:00:00:99 dev unusualbr nud noarp",
		"fd00:244:1::2 dev unusualbr lladdr 02:00:00:00:00:99 NOARP", "fd00:244:1::2/128"},
	{locate.Neighbour, "ip neigh add proxy 10.244.1.9 dev unusualbr", "10.244.1.9 dev unusualbr proxy", "10.244.1.9/32"},
	{locate.IPsec, "ip xfrm policy add src 10.244.1.0/24 dst 10.244.2.0/24 dir out action block",
		"src 10.244.1.0/24 dst 10.244.2.0/24 dir out action block", "10.244.2.0/24"},
	{locate.IPsec, "ip xfrm policy add src fd00:244::/64 dst ::/0 proto tcp dport 80 dir fwd mark 1 mask 0xff action block",
		"src fd00:244::/64 dst ::/0 proto tcp dport 80 dir fwd action block", ""},
	{locate.IPsec, "ip xfrm policy setdefault in block", "default policy in: block", ""},
	{locate.Sysctl, "sysctl -qw net.ipv4.conf.unusual1.rp_filter=1", "net.ipv4.conf.unusual1.rp_filter = 1", ""},
	{locate.Sysctl, "sysctl -qw net.ipv4.ip_forward=1", "net.ipv4.ip_forward = 1", ""},
	{locate.Sysctl, "sysctl -qw net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.all.forwarding = 1", ""},
	{locate.Sysctl, "sysctl -qw net.ipv4.ip_local_port_range='2000 3000'", "net.ipv4.ip_local_port_range = 2000 3000", ""},
}

func TestInjections(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		for _, i := range injections {
			inject(t, i.kind, i.command, i.text, i.about)
		}
	})
}

// inject runs a command that makes one object, and the object's Fix, after which the list is what it was.
func inject(t *testing.T, kind locate.Kind, command, text, about string) {
	t.Helper()
	before := list(t)
	if err := run(command); err != nil {
		t.Error(err)
		return
	}
	var made []locate.Object
	testwait.Until(t, command+" makes one object", func() bool { // IPv6 adds a local route a moment later
		made = without(list(t), before)
		return len(made) <= 1
	})
	if len(made) != 1 || made[0].Kind != kind || !strings.HasPrefix(made[0].Text, text) {
		t.Errorf("%s:\n%swant one %s: %s", command, print(made), kind, text)
	}
	for _, o := range made {
		if about != "" && o.About.String() != about {
			t.Errorf("%s: about %s, want %s", command, o.About, about)
		}
		if err := run(o.Fix); err != nil {
			t.Errorf("%s: its fix: %v", command, err)
		}
	}
	settled(t)
	if left := without(list(t), before); len(left) > 0 {
		t.Errorf("%s: after its fix %s:\n%s", command, made[0].Fix, print(left))
	}
}

// TestSysctls alters every sysctl of a device, and 200 of all, one by one.
func TestSysctls(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		f, err := reference()
		if err != nil {
			t.Fatal(err)
		}
		if n := len(f.untold); n == 0 || n > 30 {
			t.Errorf("%d sysctls of a device are in no message, want some: %s", n, f.untold)
		}
		var names, device []string
		for name, p := range f.sysctls {
			if p.can {
				names = append(names, name)
			}
		}
		for name, p := range f.like("unusual1", "veth").sysctls {
			if p.can {
				device = append(device, path.Join(path.Dir(name), "unusual1", path.Base(name)))
			}
		}
		seed := rand.Uint64()
		draw := rand.New(rand.NewPCG(seed, 0))
		slices.Sort(names)
		draw.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		altered := 0
		for _, name := range append(device, names...) {
			if altered < 200 && alter(t, name) {
				altered++
			}
		}
		if altered < 200 {
			t.Errorf("seed %d: %d of %d sysctls could be altered, want 200", seed, altered, len(names)+len(device))
		}
	})
}

// alter gives a sysctl another value, and reports whether the kernel took it.
func alter(t *testing.T, name string) bool {
	t.Helper()
	was, _, ok := readParameter(name)
	n, err := strconv.Atoi(was)
	if !ok || err != nil || slices.Contains(random, path.Base(name)) {
		return false
	}
	if slices.Contains([]string{"flush", "nf_hooks_lwtunnel"}, path.Base(name)) {
		return false
	}
	before := list(t)
	var now string
	for _, value := range []int{1 - n, n + 1, n - 1, 0, 1} {
		text := strconv.Itoa(value)
		err := run(fmt.Sprintf("echo %s 2>/dev/null >/proc/sys/net/%s", text, name))
		if now, _, _ = readParameter(name); err == nil && now != was {
			break
		}
	}
	if now == was {
		return false
	}
	made := without(list(t), before)
	text := "net." + swapDots.Replace(name) + " = " + now
	if name == "ipv4/conf/all/forwarding" {
		text = "net.ipv4.ip_forward = " + now
	}
	if !slices.ContainsFunc(made, func(o locate.Object) bool { return o.Text == text }) {
		t.Errorf("%s was %s:\n%swant %s", name, was, print(made), text)
	}
	for _, o := range made {
		if o.Dev == "unusual2" && strings.Contains(name, "/unusual1/") {
			t.Errorf("%s: %s is said of another device", name, o.Text)
		}
		if err := run(o.Fix); err != nil {
			t.Error(err)
		}
	}
	settled(t)
	if left := without(list(t), before); len(left) > 0 {
		t.Errorf("%s after its fix:\n%s", name, print(left))
	}
	return true
}

func TestRouted(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		for _, line := range []string{"sysctl -qw net.ipv4.ip_forward=1", "ip rule add from 10.244.1.0/24 fwmark 5 lookup 77 pref 300",
			"ip route add blackhole 10.9.0.0/16 table 77", "ip route add prohibit 10.8.0.0/16 table 77 metric 3",
			"ip route add 10.0.0.0/8 via 10.244.1.3 table 77", "ip -6 route add unreachable fd00:9::/64",
			"ip rule add to 10.7.0.0/16 prohibit pref 400"} {
			if err := run(line); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			name             string
			p                Packet
			route, rule, err string
		}{
			{"connected", packet("10.244.1.2", "10.244.1.3"), "10.244.1.0/24 dev unusualbr proto kernel scope link", "", ""},
			{"no route", packet("10.244.1.2", "10.9.0.1"), "", "", "network is unreachable"},
			{"blackhole of a rule", marked("10.244.1.2", "10.9.0.1"), "blackhole 10.9.0.0/16 table 77", "300: from 10.244.1.0/24 fwmark 0x5 lookup 77", "invalid argument"},
			{"prohibit", marked("10.244.1.2", "10.8.0.1"), "prohibit 10.8.0.0/16 table 77 metric 3", "300: from", "permission denied"},
			{"unicast of a rule", marked("10.244.1.2", "10.10.0.1"), "10.0.0.0/8 via 10.244.1.3 dev unusualbr table 77", "300: from", ""},
			{"a rule that refuses", packet("10.244.1.2", "10.7.0.1"), "", "400: from all to 10.7.0.0/16 prohibit", "permission denied"},
			{"IPv6", packet("fd00:244:1::2", "fd00:9::1"), "unreachable fd00:9::/64", "", "no route to host"},
			{"IPv6, connected", packet("fd00:244:1::2", "fd00:244:1::3"), "fd00:244:1::/64 dev unusualbr", "", ""},
		} {
			route, rule, err := Routed(c.p)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if !strings.HasPrefix(route.Text, c.route) || c.route == "" && route.Text != "" ||
				!strings.HasPrefix(rule.Text, c.rule) || c.rule == "" && rule.Text != "" || !strings.HasSuffix(text, c.err) ||
				c.err == "" && text != "" {
				t.Errorf("%s: %q, %q, %q\nwant %q, %q, %q", c.name, route.Text, rule.Text, text, c.route, c.rule, c.err)
			}
		}
	})
}

// packet arrives on the bridge.
func packet(src, dst string) Packet {
	return Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), In: "unusualbr", Proto: 6, DPort: 80}
}

func marked(src, dst string) Packet {
	p := packet(src, dst)
	p.Mark = 5
	return p
}
