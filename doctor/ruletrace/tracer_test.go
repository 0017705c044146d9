package ruletrace

import (
	"errors"
	"fmt"
	"net"
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

// startIn starts a Tracer in the node.
func startIn(t testing.TB, pairs ...Pair) *Tracer {
	t.Helper()
	var tracer *Tracer
	if err := node.Do(func() (err error) { tracer, err = Start(pairs); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
	})
	return tracer
}

// TestEncapsulated: rules that stop what carries the packets.
func TestEncapsulated(t *testing.T) {
	need(t, "nft")
	inner := Pair{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")}
	inner6 := Pair{netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::2")}
	for name, c := range map[string]struct {
		device string // REMOTE is the other's address
		pair   Pair
		rule   string
		proto  byte
	}{
		"vxlan":      {"type vxlan id 1 dstport 4789 remote REMOTE", inner, "udp dport 4789 drop", 17},
		"vxlan ipv6": {"type vxlan id 1 dstport 8472 remote REMOTE", inner6, "udp dport 8472 drop", 17},
	} {
		t.Run(name, func(t *testing.T) {
			wire(t)
			for i, h := range []host.Host{node, hostB} {
				device := strings.Replace(c.device, "REMOTE", fmt.Sprintf("10.2.0.%d", 2-i), 1)
				sh(t, h, "ip link add tun1 "+device, "ip link set tun1 up", fmt.Sprintf("ip addr add 10.9.0.%d/24 dev tun1", i+1),
					fmt.Sprintf("ip addr add fd09::%d/64 dev tun1 nodad", i+1))
			}
			if !reaches(t, node, c.pair.B, 0) {
				t.Fatal("no packet passes before there is a rule")
			}
			sh(t, node, "nft add table inet fw", "nft add chain inet fw out '{ type filter hook postrouting priority 0; }'",
				"nft add rule inet fw out "+c.rule)
			hits, answered := trace(t, c.pair, node, c.pair.B, 0)
			i := slices.IndexFunc(hits, func(h locate.Hit) bool { return h.Stops })
			if answered || i < 0 {
				t.Fatalf("answered: %v, hits %+v", answered, hits)
			}
			h := hits[i]
			if !matches(h.Object.Text, "inet fw out handle HANDLE: "+c.rule) || h.Proto != c.proto || h.Dst.String() != "10.2.0.2" || h.Out != "b0" {
				t.Errorf("got %+v", h)
			}
			sh(t, node, h.Object.Fix)
			if !reaches(t, node, c.pair.B, 0) {
				t.Error("no packet passes after the fix")
			}
		})
	}
}

// TestCarriers: packets inside others are found, whatever device made these.
func TestCarriers(t *testing.T) {
	need(t, "nft")
	wire(t)
	inner4, inner6 := make([]byte, source4), make([]byte, source6)
	inner4 = slices.Concat(inner4, a4.AsSlice(), c4.AsSlice())
	inner6 = slices.Concat(inner6, c6.AsSlice(), a6.AsSlice())
	vxlan := make([]byte, vxlanHeaders-udpHeader)
	request := slices.Concat(vxlan, make([]byte, arpTarget), c4.AsSlice())
	solicitation := slices.Concat(vxlan, make([]byte, ip6Header+discoveryTarget), c6.AsSlice())
	sh(t, node, base("inet", "output", "nft add rule inet fw output ip daddr 10.2.0.2 counter")...)
	for name, c := range map[string]struct {
		network string
		payload []byte
		proto   byte
	}{
		"vxlan":           {"udp", slices.Concat(vxlan, inner4), 17},
		"vxlan of ipv6":   {"udp", slices.Concat(vxlan, inner6), 17},
		"vxlan of arp":    {"udp", request, 17},
		"vxlan of nd":     {"udp", solicitation, 17},
		"flannel's udp":   {"udp", inner4, 17},
		"udp of ipv6":     {"udp", inner6, 17},
		"ipip":            {"ip4:4", inner4, 4},
		"ipv6 in ipv4":    {"ip4:41", inner6, 41},
		"something else":  {"udp", slices.Concat(vxlan, inner4[1:]), 0},
		"another address": {"ip4:4", slices.Concat(inner4[:source4], b4.AsSlice(), c4.AsSlice()), 0},
	} {
		tracer := startIn(t, Pair{a4, c4}, Pair{a6, c6})
		err := node.Do(func() error {
			to := "10.2.0.2"
			if c.network == "udp" {
				to += ":4000"
			}
			conn, err := net.Dial(c.network, to)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write(c.payload)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		hits, err := tracer.Stop()
		found := slices.ContainsFunc(hits, func(h locate.Hit) bool {
			return h.Proto == c.proto && matches(h.Object.Text, "inet fw output handle HANDLE: ip daddr 10.2.0.2 counter")
		})
		if err != nil || found != (c.proto != 0) {
			t.Errorf("%s: %+v, %v", name, hits, err)
		}
	}
}

// TestHarmless: a rule that only counts is returned, and one for other packets is not.
func TestHarmless(t *testing.T) {
	need(t, "nft")
	wire(t)
	sh(t, node, base("inet", "forward", "nft add rule inet fw forward counter", "nft add rule inet fw forward tcp dport 80 drop",
		"nft add rule inet fw forward ip daddr 10.2.0.2 accept")...)
	if !reaches(t, hostA, b4, 0) {
		t.Fatal("b is not reached")
	}
	hits, answered := traceWithin(t, Pair{a4, b4}, hostA, b4, 0, testwait.Limit)
	if !answered {
		t.Error("no answer")
	}
	var got []string
	for _, h := range hits {
		if h.Stops || h.Rewrote != "" {
			t.Errorf("got %+v", h)
		}
		if h.Src == a4 {
			got = append(got, h.Verdict+" "+h.Object.Text)
		}
	}
	if len(got) != 2 || !matches(got[0], "continue inet fw forward handle HANDLE: counter") ||
		!matches(got[1], "accept inet fw forward handle HANDLE: ip daddr 10.2.0.2 accept") {
		t.Errorf("got %q", got)
	}
	if hits, _ := trace(t, Pair{a4, c4}, hostA, b4, 0); len(hits) > 0 {
		t.Errorf("of other packets: %+v", hits)
	}
}

// TestJumps: a rule that leads to another chain names it, also if a map has chosen it, and has its writer's comment.
func TestJumps(t *testing.T) {
	need(t, "nft", "iptables-nft")
	wire(t)
	sh(t, node, base("ip", "forward", "nft add chain ip fw one", "nft add chain ip fw two", "nft add rule ip fw one counter",
		`nft add rule ip fw forward ip daddr vmap '{ 10.2.0.2 : jump one, 10.2.0.9 : jump two }' comment '"by address"'`,
		"iptables-nft -N OWN", "iptables-nft -A OWN -p icmp", "iptables-nft -A FORWARD -m comment --comment 'all packets' -j OWN")...)
	if !reaches(t, hostA, b4, 0) {
		t.Fatal("b is not reached")
	}
	hits, _ := traceWithin(t, Pair{a4, b4}, hostA, b4, 0, testwait.Limit)
	for _, want := range []locate.Object{
		{Table: "fw", Chain: "forward", Target: "one", Comment: "by address"}, {Table: "fw", Chain: "one"},
		{Table: "filter", Chain: "FORWARD", Target: "OWN", Comment: "all packets"}, {Table: "filter", Chain: "OWN"},
	} {
		if !slices.ContainsFunc(hits, func(h locate.Hit) bool {
			o := h.Object
			return o.Table == want.Table && o.Chain == want.Chain && o.Target == want.Target && o.Comment == want.Comment
		}) {
			t.Errorf("no rule of %s %s that leads to %q, %q: %+v", want.Table, want.Chain, want.Target, want.Comment, hits)
		}
	}
}

// TestOthersTraces: packets that somebody else traces are not ours.
func TestOthersTraces(t *testing.T) {
	need(t, "nft")
	wire(t)
	sh(t, node, "nft add table ip debug", "nft add chain ip debug pre '{ type filter hook prerouting priority -500; }'",
		"nft add rule ip debug pre meta nftrace set 1")
	sh(t, node, base("inet", "forward", "nft add rule inet fw forward counter")...)
	first, second := startIn(t, Pair{a4, b4}), startIn(t, Pair{c4, netip.MustParseAddr("10.2.0.99")})
	if !reaches(t, hostA, b4, 0) {
		t.Fatal("b is not reached")
	}
	if hits, err := first.Stop(); err != nil || len(hits) == 0 {
		t.Errorf("got %+v, %v", hits, err)
	}
	if hits, err := second.Stop(); err != nil || len(hits) > 0 {
		t.Errorf("of other packets: %+v, %v", hits, err)
	}
}

// TestStop: it may be called again, from any thread, and leaves nothing; so does Close alone.
func TestStop(t *testing.T) {
	wire(t)
	before := sh(t, node, "nft list ruleset")
	tracer := startIn(t, Pair{a4, b4}, Pair{a6, b6})
	sh(t, node, base("inet", "forward", "nft add rule inet fw forward counter drop")...)
	for _, list := range []string{"nft list ruleset", "nft -a list ruleset", "nft -j list ruleset"} {
		if out := sh(t, node, list); strings.Count(out, tableName) < 4 { // nft understands what is there meanwhile
			t.Errorf("%s: %s", list, out)
		}
	}
	ping(t, hostA, b4, 0, 100*time.Millisecond)
	first, err := tracer.Stop() // this thread is not in the node
	if err != nil {
		t.Fatal(err)
	}
	second, err := tracer.Stop()
	if err != nil || !slices.Equal(first, second) || len(first) == 0 || !strings.Contains(first[0].Object.Text, "counter drop") || first[0].In != "br0" {
		t.Errorf("got %+v, then %+v, %v", first, second, err)
	}
	if err := tracer.Close(); err != nil {
		t.Error(err)
	}
	other := startIn(t, Pair{a4, b4})
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if hits, err := other.Stop(); err == nil || len(hits) > 0 {
		t.Errorf("after Close: %+v, %v", hits, err)
	}
	sh(t, node, "nft delete table inet fw")
	if after := sh(t, node, "nft list ruleset"); after != before {
		t.Errorf("left: %s", after)
	}
}

// TestWithoutPrograms: what the kernel says is enough to name a rule.
func TestWithoutPrograms(t *testing.T) {
	need(t, "nft", "iptables-nft", "iptables-legacy")
	wire(t)
	sh(t, node, base("inet", "forward", "nft add rule inet fw forward ip daddr 10.2.0.2 reject")...)
	sh(t, node, "iptables-nft -A FORWARD -j ACCEPT", "iptables-legacy -A FORWARD -j ACCEPT")
	t.Setenv("PATH", t.TempDir())
	tracer := startIn(t, Pair{a4, b4})
	ping(t, hostA, b4, 0, 100*time.Millisecond)
	hits, err := tracer.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"inet fw forward handle HANDLE: reject", "ip filter FORWARD handle HANDLE: accept"} {
		if !slices.ContainsFunc(hits, func(h locate.Hit) bool { return matches(h.Object.Text, want) }) {
			t.Errorf("no %q in %+v", want, hits)
		}
	}
	missed := tracer.Unwatched()
	if len(missed) != 1 || missed[0].Error() != `read the legacy tables ["filter"]: there is no legacy variant of iptables` {
		t.Errorf("unwatched: %v", missed)
	}
}

const crashVar = "TWILL_RULETRACE_CRASH"

// TestCrash: a process that ends without Close leaves nothing.
func TestCrash(t *testing.T) {
	if os.Getenv(crashVar) != "" {
		startIn(t, Pair{a4, b4})
		fmt.Println(sh(t, node, "nft list tables"))
		os.Exit(0)
	}
	wire(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestCrash$", "-test.v")
	cmd.Env = append(os.Environ(), crashVar+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), tableName) != 4 {
		t.Errorf("want four tables: %v\n%s", err, out)
	}
	if left := sh(t, node, "nft list tables"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestWithoutOwner: kernels before 5.12 know no owner. The tables of a crashed Tracer are replaced.
func TestWithoutOwner(t *testing.T) {
	wire(t)
	err := node.Do(func() error {
		for range 2 {
			tables, err := openTables()
			if err != nil {
				return err
			}
			tables.owner, tables.name = false, tableName
			if missed, err := tables.make(newMarks([]Pair{{a4, b4}})); err != nil || len(missed) > 0 {
				return errors.Join(append(missed, err)...)
			}
			tables.conn.Close() // a crash
		}
		tables, err := openTables()
		if err != nil {
			return err
		}
		tables.owner, tables.name = false, tableName
		if _, err := tables.make(newMarks([]Pair{{a4, b4}})); err != nil {
			return err
		}
		return tables.close()
	})
	if err != nil {
		t.Error(err)
	}
	if left := sh(t, node, "nft list tables"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestManyDevices: the devices of a node with many pods share chains: the kernel takes longer for chains of each.
func TestManyDevices(t *testing.T) {
	wire(t)
	for i := range 150 {
		sh(t, node, fmt.Sprintf("ip link add many%d type veth peer name peer%[1]d", i))
	}
	begin := time.Now()
	tracer := startIn(t, Pair{a4, b4}, Pair{a6, b6})
	chains := tracer.tables.numbered
	t.Logf("start %v, %d pairs of chains", time.Since(begin), chains)
	if err := tracer.Close(); err != nil {
		t.Error(err)
	}
	if missed := tracer.Unwatched(); len(missed) > 0 {
		t.Error(missed)
	}
	if chains == 0 || chains > 10 {
		t.Errorf("%d pairs of chains for more than 150 devices, want a few", chains)
	}
}

// TestNoRights: without the rights to trace there is one sentence.
func TestNoRights(t *testing.T) {
	const variable = "TWILL_RULETRACE_NO_RIGHTS"
	if os.Getenv(variable) != "" {
		_, err := Start([]Pair{{a4, b4}})
		fmt.Println("SAID", err)
		return
	}
	cmd := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", os.Args[0], "-test.run=TestNoRights")
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	want := "SAID trace packets through the firewall: not permitted: want CAP_NET_ADMIN in their network namespace\n"
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestPairs: bad addresses get one sentence.
func TestPairs(t *testing.T) {
	for _, p := range []Pair{{}, {a4, netip.Addr{}}, {netip.Addr{}, a4}, {a4, b6}, {a4, netip.MustParseAddr("::ffff:10.0.0.1")}} {
		if _, err := Start([]Pair{p}); err == nil || !strings.Contains(err.Error(), "want two addresses of one family") {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// BenchmarkStart is the time to begin and to end.
func BenchmarkStart(b *testing.B) {
	wire(b)
	for b.Loop() {
		tracer := startIn(b, Pair{a4, b4})
		if _, err := tracer.Stop(); err != nil {
			b.Fatal(err)
		}
	}
}
