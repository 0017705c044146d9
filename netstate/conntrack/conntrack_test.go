package conntrack

import (
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testns"
)

// rules have the kernel track connections, and translate the port 8.
const rules = `
table inet test {
	chain nat {
		type nat hook output priority -100
		ip daddr 127.0.0.1 tcp dport 8 dnat to 127.0.0.1:9
	}
	chain output {
		type filter hook output priority 0
		ct state new accept
	}
}`

// inNamespace gives the test's thread a network namespace of its own, which ends with it.
func inNamespace(t *testing.T) {
	t.Helper()
	for _, program := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	testns.Enter(t, "ip link set lo up")
	run(t, rules, "nft", "-f", "-")
}

func run(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// connect opens a connection, and returns it.
func connect(t *testing.T, network, to string) Connection {
	t.Helper()
	conn, err := net.Dial(network, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	c := Connection{From: netip.MustParseAddrPort(conn.LocalAddr().String()), To: netip.MustParseAddrPort(to), Protocol: unix.IPPROTO_TCP}
	if network == "udp" {
		c.Protocol = unix.IPPROTO_UDP
	}
	return c
}

// serve listens at port 9 of both families. What comes over TCP goes back.
func serve(t *testing.T) {
	t.Helper()
	for _, address := range []string{"127.0.0.1:9", "[::1]:9"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		u, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { u.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(conn, conn) }()
			}
		}()
	}
}

// told returns the connections that a table tells of.
func told(t *testing.T, table *Table) map[Connection]bool {
	t.Helper()
	all := map[Connection]bool{}
	if err := table.Each(func(c Connection) { all[c] = true }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEach: connections of both families and protocols are told, by what answers where an address is translated.
func TestEach(t *testing.T) {
	inNamespace(t)
	serve(t)
	table, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	want := map[Connection]bool{connect(t, "tcp", "127.0.0.1:9"): true, connect(t, "udp", "127.0.0.1:9"): true,
		connect(t, "tcp", "[::1]:9"): true, connect(t, "udp", "[::1]:9"): true}
	translated := connect(t, "tcp", "127.0.0.1:8")
	translated.To = netip.MustParseAddrPort("127.0.0.1:9")
	want[translated] = true
	if got := told(t, table); !maps.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}

// BenchmarkEach tells of 50,000 connections.
func BenchmarkEach(b *testing.B) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Skip(err)
	}
	table, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	to := net.IPv4(10, 244, 1, 2).To4()
	for i := range 50_000 {
		from := net.IPv4(10, 244, byte(i>>8), byte(i)).To4()
		flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 1000,
			Forward: netlink.IPTuple{SrcIP: from, DstIP: to, SrcPort: 1000, DstPort: 80, Protocol: unix.IPPROTO_UDP},
			Reverse: netlink.IPTuple{SrcIP: to, DstIP: from, SrcPort: 80, DstPort: 1000, Protocol: unix.IPPROTO_UDP}}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
			b.Fatal(err)
		}
	}
	began := time.Now()
	for b.Loop() {
		told := 0
		if err := table.Each(func(Connection) { told++ }); err != nil || told < 50_000 {
			b.Fatal(told, err)
		}
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000/float64(b.N), "ms/pass")
}
