package drops

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// prefix is of this test's namespaces.
const prefix = "twill-drops-"

func sh(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// pair makes two namespaces with a wire, v4 and v6.
func pair(t *testing.T) (a, b string) {
	t.Helper()
	a, b = prefix+"a", prefix+"b"
	remove := func() {
		for _, ns := range []string{a, b} {
			_ = exec.Command("ip", "netns", "del", ns).Run()
		}
	}
	remove()
	t.Cleanup(remove)
	sh(t, "ip netns add "+a, "ip netns add "+b, "ip -n "+a+" link add wire address 02:00:00:00:00:01 type veth peer name wire address 02:00:00:00:00:02 netns "+b)
	for i, ns := range []string{a, b} {
		sh(t, fmt.Sprintf("ip -n %s addr add 192.0.2.%d/24 dev wire", ns, i+1), fmt.Sprintf("ip -n %s addr add 2001:db8::%d/64 dev wire nodad", ns, i+1),
			"ip -n "+ns+" link set wire up", "ip -n "+ns+" link set lo up",
			// Neighbour discovery would wait for duplicate address detection, and ARP obeys the reverse path check.
			fmt.Sprintf("ip -n %s neigh add 192.0.2.%d lladdr 02:00:00:00:00:0%[2]d dev wire", ns, 2-i),
			fmt.Sprintf("ip -n %s neigh add 2001:db8::%d lladdr 02:00:00:00:00:0%[2]d dev wire", ns, 2-i))
	}
	return a, b
}

// TestReasons: real packets that the kernel drops for reasons that are known.
func TestReasons(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("want root")
	}
	v4 := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	v6 := [2]netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
	for name, c := range map[string]struct {
		ends   [2]netip.Addr
		harm   string // in b
		reason string
		at     string
	}{
		"firewall":     {v4, "nft add table ip f; nft add chain ip f in '{ type filter hook input priority 0; }'; nft add rule ip f in icmp type echo-request drop", "NETFILTER_DROP", "b"},
		"firewall six": {v6, "nft add table ip6 f; nft add chain ip6 f in '{ type filter hook input priority 0; }'; nft add rule ip6 f in icmpv6 type echo-request drop", "NETFILTER_DROP", "b"},
		"reverse path": {v4, "sysctl -qw net.ipv4.conf.all.rp_filter=1; ip route add 192.0.2.1/32 dev lo", "IP_RPFILTER", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			sh(t, "ip netns exec "+b+" sh -c \""+c.harm+"\"")
			w, err := Watch(c.ends[1], c.ends[0])
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := exec.Command("ip", "netns", "exec", a, "ping", "-c", "2", "-i", "0.1", "-W", "0.3", c.ends[1].String()).Run(); err == nil {
				t.Error("the ping is answered")
			}
			got, err := w.Read()
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(got, func(d Drop) bool { return d.Reason == c.reason })
			if i < 0 {
				t.Fatalf("want %s, got %+v", c.reason, got)
			}
			if d := got[i]; d.Netns != inode(t, prefix+c.at) || d.Dev != "wire" || d.Function == "" {
				t.Errorf("got %+v, want namespace %d", d, inode(t, prefix+c.at))
			}
		})
	}
}

func inode(t *testing.T, ns string) uint32 {
	t.Helper()
	out, err := exec.Command("stat", "-L", "-c", "%i", "/run/netns/"+ns).Output()
	if err != nil {
		t.Fatal(err)
	}
	var n uint32
	if _, err := fmt.Sscan(strings.TrimSpace(string(out)), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOthersAreLeftOut: drops of other addresses are not reported.
func TestOthersAreLeftOut(t *testing.T) {
	a, b := pair(t)
	sh(t, "ip netns exec "+b+" nft add table ip f", "ip netns exec "+b+" nft add chain ip f in '{ type filter hook input priority 0; policy drop; }'")
	w, err := Watch(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_ = exec.Command("ip", "netns", "exec", a, "ping", "-c", "1", "-W", "0.2", "192.0.2.2").Run()
	if got, err := w.Read(); err != nil || len(got) > 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestNamespaces: all drops of the namespaces that are asked for, whatever the addresses, and none of others.
func TestNamespaces(t *testing.T) {
	a, b := pair(t)
	for _, ns := range []string{a, b} {
		sh(t, "ip netns exec "+ns+" nft add table inet f", "ip netns exec "+ns+" nft add chain inet f in '{ type filter hook input priority 0; policy drop; }'")
	}
	w, err := WatchNamespaces([]uint32{inode(t, b), 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	began := time.Now()
	for from, to := range map[string]string{a: "192.0.2.2", b: "192.0.2.1"} {
		_ = exec.Command("ip", "netns", "exec", from, "ping", "-c", "1", "-W", "0.2", to).Run()
	}
	got, err := w.Read()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, d := range got {
		if d.Netns != inode(t, b) {
			t.Errorf("of another namespace: %+v", d)
		}
		if d.Reason != "NETFILTER_DROP" {
			continue
		}
		count++
		if d.Time.Before(began.Add(-time.Millisecond)) || d.Time.After(time.Now()) {
			t.Errorf("dropped at %v: want a time since %v", d.Time, began)
		}
	}
	if count != 1 {
		t.Errorf("%d drops by rules, want the one in %s: %+v", count, b, got)
	}
}

// TestNoRights: without the rights to trace there is one sentence.
func TestNoRights(t *testing.T) {
	if os.Getenv("TWILL_DROPS_CHILD") != "" {
		_, err := Watch(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
		fmt.Println("SAID", err)
		return
	}
	cmd := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", os.Args[0], "-test.run=TestNoRights")
	cmd.Env = append(os.Environ(), "TWILL_DROPS_CHILD=1")
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SAID") || !strings.Contains(string(out), "not permitted: want root on the machine itself, or CAP_BPF and CAP_PERFMON") {
		t.Errorf("%v: %s", err, out)
	}
}

// BenchmarkWatch is the time from nothing to an attached program.
func BenchmarkWatch(b *testing.B) {
	for b.Loop() {
		w, err := Watch(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
