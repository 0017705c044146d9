package ruletrace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

// The namespaces: b is reached through node, which routes; a and c are ports of its bridge.
var (
	node  = host.Host{Name: "ruletrace-node"}
	hostA = host.Host{Name: "ruletrace-a"}
	hostB = host.Host{Name: "ruletrace-b"}
	hostC = host.Host{Name: "ruletrace-c"}
)

// Their addresses. A is always the one that pings.
var (
	a4, b4, c4 = netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("10.1.0.3")
	a6, b6, c6 = netip.MustParseAddr("fd01::2"), netip.MustParseAddr("fd02::2"), netip.MustParseAddr("fd01::3")
	node4      = netip.MustParseAddr("10.1.0.1")
)

// wire makes the namespaces.
func wire(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("want root")
	}
	all := []host.Host{node, hostA, hostB, hostC}
	remove := func() {
		for _, h := range all {
			if err := h.Delete(); err != nil {
				t.Error(err)
			}
		}
	}
	remove()
	t.Cleanup(remove)
	for _, h := range all {
		if err := h.Create(); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, node, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
		"ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.1.0.1/24 dev br0",
		"ip addr add fd01::1/64 dev br0 nodad")
	for _, x := range []struct {
		host     host.Host
		dev, net string
		bridged  bool
		number   int
	}{{hostA, "a0", "1", true, 2}, {hostB, "b0", "2", false, 2}, {hostC, "c0", "1", true, 3}} {
		sh(t, node, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s", x.dev, x.host.Name), "ip link set "+x.dev+" up")
		if x.bridged {
			sh(t, node, "ip link set "+x.dev+" master br0")
		} else {
			sh(t, node, "ip addr add 10."+x.net+".0.1/24 dev "+x.dev, "ip addr add fd0"+x.net+"::1/64 dev "+x.dev+" nodad")
		}
		sh(t, x.host, fmt.Sprintf("ip addr add 10.%s.0.%d/24 dev eth0", x.net, x.number),
			fmt.Sprintf("ip addr add fd0%s::%d/64 dev eth0 nodad", x.net, x.number), "ip link set eth0 up",
			"ip route add default via 10."+x.net+".0.1", "ip route add default via fd0"+x.net+"::1")
	}
}

// sh runs shell commands in a namespace.
func sh(t testing.TB, h host.Host, lines ...string) string {
	t.Helper()
	all := ""
	for _, line := range lines {
		out, err := h.Exec(context.Background(), "sh", "-c", line)
		if err != nil {
			t.Fatal(err)
		}
		all += out
	}
	return all
}

// ping reports whether a host reaches an address. The first ping may wait for duplicate address detection.
func ping(t testing.TB, from host.Host, to netip.Addr, size int, timeout time.Duration) bool {
	t.Helper()
	_, err := from.Ping(t.Context(), host.Ping{To: to, Size: size, Timeout: timeout})
	if err != nil && !errors.Is(err, host.ErrNoReply) {
		t.Logf("ping %s: %v", to, err)
	}
	return err == nil
}

// reaches pings until there is an answer.
func reaches(t testing.TB, from host.Host, to netip.Addr, size int) bool {
	t.Helper()
	for end := time.Now().Add(testwait.Limit); time.Now().Before(end); {
		if ping(t, from, to, size, 300*time.Millisecond) {
			return true
		}
	}
	return false
}

// trace returns what a ping met in the node that is not to be answered.
func trace(t testing.TB, pair Pair, from host.Host, to netip.Addr, size int) ([]locate.Hit, bool) {
	t.Helper()
	return traceWithin(t, pair, from, to, size, 200*time.Millisecond)
}

// traceWithin returns what a ping met in the node, and whether it was answered within a time.
func traceWithin(t testing.TB, pair Pair, from host.Host, to netip.Addr, size int, within time.Duration) ([]locate.Hit, bool) {
	t.Helper()
	var tracer *Tracer
	if err := node.Do(func() (err error) { tracer, err = Start([]Pair{pair}); return err }); err != nil {
		t.Fatal(err)
	}
	for _, err := range tracer.Unwatched() {
		t.Errorf("unwatched: %v", err)
	}
	answered := ping(t, from, to, size, within)
	hits, err := tracer.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		t.Logf("%s %s %s>%s %s>%s %d %s stops=%v %q: %s | %s", h.Family, h.Hook, h.In, h.Out, h.Src, h.Dst, h.Proto, h.Verdict,
			h.Stops, h.Rewrote, h.Object.Text, h.Object.Fix)
	}
	if left := sh(t, node, "nft list tables"); strings.Contains(left, tableName) {
		t.Errorf("left behind: %s", left)
	}
	return hits, answered
}

func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

// loss is a rule that loses packets, and the Hit that must be found.
type loss struct {
	rules []string // commands in the node
	to    netip.Addr
	size  int
	text  string // a prefix of the object's text; HANDLE stands for any number
	fix   string
	want  locate.Hit // but for the object; addresses if they are valid
}

// base makes an nft table with one base chain.
func base(family, hook string, more ...string) []string {
	device := ""
	if family == "netdev" {
		device = "device a0 "
	}
	return append([]string{
		"nft add table " + family + " fw",
		fmt.Sprintf("nft add chain %s fw %s '{ type filter hook %[2]s %s priority 0; }'", family, hook, device),
	}, more...)
}

func check(t *testing.T, l loss) {
	t.Helper()
	if !reaches(t, hostA, l.to, l.size) {
		t.Fatalf("%s is not reached before there is a rule", l.to)
	}
	sh(t, node, l.rules...)
	pair := Pair{a4, l.to}
	if l.to.Is6() {
		pair.A = a6
	}
	hits, answered := trace(t, pair, hostA, l.to, l.size)
	if answered {
		t.Fatal("the rule loses no packet")
	}
	i := slices.IndexFunc(hits, func(h locate.Hit) bool { return h.Stops || h.Rewrote != "" })
	if i < 0 {
		t.Fatalf("nothing is found that stops or rewrites: %+v", hits)
	}
	h := hits[i]
	if !matches(h.Object.Text, l.text) || !matches(h.Object.Fix, l.fix) {
		t.Errorf("got %q, fix %q\nwant %q, fix %q", h.Object.Text, h.Object.Fix, l.text, l.fix)
	}
	if words := strings.Fields(h.Object.Text); h.Object.Table != words[1] || h.Object.Chain != strings.TrimSuffix(words[2], ":") {
		t.Errorf("it is of the table %q and the chain %q: %s", h.Object.Table, h.Object.Chain, h.Object.Text)
	}
	if l.want.In+l.want.Out == "" {
		h.In, h.Out = "", ""
	}
	if !l.want.Src.IsValid() {
		h.Src, h.Dst, h.Proto = netip.Addr{}, netip.Addr{}, 0
	}
	if !isMade(h) {
		t.Errorf("judgements are told %+v, which is not %q", h.Effect, h.Rewrote)
	}
	h.Object, h.Effect = l.want.Object, l.want.Effect
	if l.want.Rewrote == "ether daddr" && strings.HasPrefix(h.Rewrote, "ether daddr ") { // the old one is random
		h.Rewrote = l.want.Rewrote
	}
	if h != l.want {
		t.Errorf("got %+v\nwant %+v", h, l.want)
	}
	sh(t, node, hits[i].Object.Fix)
	if !reaches(t, hostA, l.to, l.size) {
		t.Errorf("no packet passes after %s", hits[i].Object.Fix)
	}
}

// matches reports whether text is the pattern, in which HANDLE stands for a number.
func matches(text, pattern string) bool {
	parts := strings.Split(pattern, "HANDLE")
	for i, p := range parts {
		rest, ok := strings.CutPrefix(text, p)
		if !ok {
			return false
		}
		text = rest
		if i < len(parts)-1 {
			text = strings.TrimLeft(text, "0123456789")
		}
	}
	return text == ""
}

// isMade reports whether a hit's effect is what its words say of a new destination, source or mark.
func isMade(h locate.Hit) bool {
	_, to, _ := strings.Cut(h.Rewrote+",", "daddr ")
	_, to, moved := strings.Cut(to, " to ")
	to, _, _ = strings.Cut(to, ",")
	if _, err := netip.ParseAddr(to); moved && err == nil && h.Effect.To.Addr().String() != to {
		return false
	}
	return strings.HasPrefix(h.Rewrote, "mark ") == h.Effect.Marks && (h.Rewrote == Copied) == h.Effect.Copies &&
		(!h.Effect.Source || strings.HasPrefix(h.Rewrote, "saddr ") || h.Counted)
}
