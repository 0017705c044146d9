package conntrack

import (
	"fmt"
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
)

// rules have the kernel track connections, give them a mark of somebody else's, and translate the port 8.
const rules = `
table inet test {
	chain nat {
		type nat hook output priority -100
		ip daddr 127.0.0.1 tcp dport 8 dnat to 127.0.0.1:9
	}
	chain output {
		type filter hook output priority 0
		ct state new ct mark set 0x5
	}
}`

const bit = 1 << 27

// inNamespace gives the test's thread a network namespace of its own, which ends with it.
func inNamespace(t *testing.T) {
	t.Helper()
	for _, program := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run(t, "", "ip", "link", "set", "lo", "up")
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

// marks are those of all connections.
func marks(t *testing.T) map[string]uint32 {
	t.Helper()
	all := map[string]uint32{}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			all[fmt.Sprint(f.Forward.Protocol, " ", f.Forward.SrcPort, " ", f.Forward.DstPort)] = f.Mark
		}
	}
	return all
}

func (c Connection) key() string { return fmt.Sprint(c.Protocol, " ", c.From.Port(), " ", c.To.Port()) }

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

// TestMark: marks are set and taken away, of both families and protocols; other bits, other connections and those with
// translated addresses keep theirs.
func TestMark(t *testing.T) {
	inNamespace(t)
	serve(t)
	table, err := Open(bit)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	some := []Connection{connect(t, "tcp", "127.0.0.1:9"), connect(t, "udp", "127.0.0.1:9"), connect(t, "tcp", "[::1]:9"), connect(t, "udp", "[::1]:9")}
	others := []Connection{connect(t, "tcp", "127.0.0.1:9"), connect(t, "udp", "[::1]:9")}
	translated := connect(t, "tcp", "127.0.0.1:8")
	denied := map[Connection]bool{}
	asked := map[Connection]bool{}
	for step, deny := range [][]Connection{nil, some, some, some[:1], nil} {
		clear(denied)
		clear(asked)
		want := map[string]uint32{translated.key(): 5}
		for _, c := range append(some, others...) {
			want[c.key()] = 5
		}
		for _, c := range deny {
			denied[c] = true
			want[c.key()] = 5 | bit
		}
		n, err := table.Mark(func(c Connection) bool { asked[c] = true; return denied[c] })
		if err != nil {
			t.Fatal(err)
		}
		if marked := map[int]int{1: 4}[step]; n != marked {
			t.Errorf("step %d: %d connections are told as marked, want %d", step, n, marked)
		}
		if len(asked) != 6 || !asked[some[0]] || !asked[some[3]] || asked[translated] {
			t.Errorf("step %d: asked of %v", step, asked)
		}
		if got := marks(t); !maps.Equal(got, want) {
			t.Errorf("step %d: the marks are %v, want %v", step, got, want)
		}
	}
}

// TestGone: a connection that is not there any more is no error.
func TestGone(t *testing.T) {
	inNamespace(t)
	u, err := net.ListenPacket("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	table, err := Open(bit)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	connect(t, "udp", "127.0.0.1:9")
	n, err := table.Mark(func(Connection) bool {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			t.Error(err)
		}
		return true
	})
	if n != 1 || err != nil {
		t.Errorf("%d connections were marked, %v", n, err)
	}
}

// BenchmarkMark asks of 50,000 connections, of which one is marked or not any more.
func BenchmarkMark(b *testing.B) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Skip(err)
	}
	table, err := Open(bit)
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
	one := netip.MustParseAddr("10.244.7.7")
	mark, began := false, time.Now()
	for b.Loop() {
		mark = !mark
		asked := 0
		if _, err := table.Mark(func(c Connection) bool { asked++; return mark && c.From.Addr() == one }); err != nil || asked < 50_000 {
			b.Fatal(asked, err)
		}
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000/float64(b.N), "ms/pass")
}
