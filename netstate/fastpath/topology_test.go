package fastpath

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// space is a network namespace, and a mount namespace with a BPF file system. Both belong to one thread, so nothing is
// left of them when the test has crashed.
type space struct {
	t    testing.TB
	path string // of the network namespace
	dir  string // of the BPF file system
	work chan func()
}

func newSpace(t testing.TB) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := &space{t: t, dir: t.TempDir(), work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("bpf", s.dir, "bpf", 0, "")
		}
		s.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		ready <- err
		for f := range s.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(s.work) })
	s.ip("link set lo up")
	return s
}

// do runs f in the namespaces.
func (s *space) do(f func()) {
	done := make(chan struct{})
	s.work <- func() { defer close(done); f() }
	<-done
}

// command runs a program in the namespaces, and returns what it prints.
func (s *space) command(name string, args ...string) string {
	s.t.Helper()
	out, err := s.try(name, args...)
	if err != nil {
		s.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func (s *space) try(name string, args ...string) (text string, err error) {
	s.do(func() {
		var out []byte
		out, err = exec.Command(name, args...).CombinedOutput()
		text = string(out)
	})
	return text, err
}

func (s *space) ip(format string, args ...any) {
	s.t.Helper()
	s.command("ip", strings.Fields(fmt.Sprintf(format, args...))...)
}

// ips runs several commands of ip in one process.
func (s *space) ips(commands ...string) {
	s.t.Helper()
	var out []byte
	var err error
	s.do(func() {
		c := exec.Command("ip", "-batch", "-")
		c.Stdin = strings.NewReader(strings.Join(commands, "\n"))
		out, err = c.CombinedOutput()
	})
	if err != nil {
		s.t.Fatalf("ip %q: %v: %s", commands, err, out)
	}
}

func (s *space) sysctl(name, value string) {
	s.t.Helper()
	var err error
	s.do(func() { err = os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
	if err != nil {
		s.t.Fatal(err)
	}
}

// node is a host with a bridge, two VXLAN devices, and one pod.
type node struct {
	*space
	n       int
	pod     *space
	p       *Provider
	classic bool // programs are attached by cls_bpf whatever the kernel has
}

// The addresses of node n.
func (n *node) addr(format string) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, n.n)) }

func (n *node) pod4() netip.Addr { return n.addr("10.1.%d.5") }
func (n *node) pod6() netip.Addr { return n.addr("fd00:1:0:%d::5") }

func (n *node) mac(what byte) netstate.MAC { return netstate.MAC{0x02, what, 0, 0, 0, byte(n.n)} }

// What the last argument of mac is.
const (
	bridgeMAC = 1
	podMAC    = 2
	vtep4MAC  = 4
	vtep6MAC  = 6
)

// pair makes two nodes whose eth0 are the ends of one cable, with one pod each.
func pair(t *testing.T) (*node, *node) {
	t.Helper()
	a, b := &node{space: newSpace(t), n: 1}, &node{space: newSpace(t), n: 2}
	a.ip("link add eth0 type veth peer name eth0 netns %s", b.path)
	for _, n := range []*node{a, b} {
		n.pod = newSpace(t)
		n.up()
	}
	a.peer(b)
	b.peer(a)
	return a, b
}

func (n *node) up() {
	n.t.Helper()
	vxlan := "mtu 1430 type vxlan id 1 dev eth0 dstport 8472 nolearning"
	n.ips("link set eth0 up",
		fmt.Sprintf("addr add 192.0.2.%d/24 dev eth0", n.n),
		fmt.Sprintf("addr add 2001:db8::%d/64 dev eth0 nodad", n.n),
		fmt.Sprintf("link add cni0 address %s mtu 1430 type bridge", n.mac(bridgeMAC)),
		fmt.Sprintf("link add flannel.1 address %s %s local 192.0.2.%d", n.mac(vtep4MAC), vxlan, n.n),
		fmt.Sprintf("link add flannel-v6.1 address %s %s local 2001:db8::%d udp6zerocsumtx udp6zerocsumrx",
			n.mac(vtep6MAC), vxlan, n.n))
	n.plug("pod", n.pod, podMAC)
	n.ips("link set cni0 up", "link set flannel.1 up", "link set flannel-v6.1 up",
		fmt.Sprintf("addr add 10.1.%d.1/24 dev cni0", n.n),
		fmt.Sprintf("addr add fd00:1:0:%d::1/64 dev cni0 nodad", n.n),
		fmt.Sprintf("addr add 10.1.%d.0/32 dev flannel.1", n.n),
		fmt.Sprintf("addr add 10.1.%d.0/32 dev flannel-v6.1", n.n),
		fmt.Sprintf("addr add fd00:1:0:%d::/128 dev flannel.1 nodad", n.n),
		fmt.Sprintf("addr add fd00:1:0:%d::/128 dev flannel-v6.1 nodad", n.n))
	n.bridgeFilter("0")
	n.sysctl("net/ipv4/ip_forward", "1")
	n.sysctl("net/ipv6/conf/all/forwarding", "1")
	n.sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", "1")
	n.pod.ips(fmt.Sprintf("addr add %s/24 dev eth0", n.pod4()),
		fmt.Sprintf("addr add %s/64 dev eth0 nodad", n.pod6()),
		fmt.Sprintf("route add default via 10.1.%d.1", n.n),
		fmt.Sprintf("route add default via fd00:1:0:%d::1", n.n))
	n.command("nft", "add table inet t; add counter inet t slow; add chain inet t f { type filter hook forward priority 0; }; "+
		"add rule inet t f counter name slow; add rule inet t f ct state established accept")
}

// bridgeFilter makes netfilter see bridged packets, if the kernel has br_netfilter: then conntrack sees pods' packets
// before the program does.
func (n *node) bridgeFilter(value string) {
	n.do(func() {
		for _, tables := range []string{"iptables", "ip6tables"} {
			_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+tables, []byte(value), 0)
		}
	})
}

// plug connects a pod with the bridge.
func (n *node) plug(dev string, pod *space, mac byte) {
	n.t.Helper()
	n.ip("link add %s mtu 1430 type veth peer name eth0 mtu 1430 address %s netns %s", dev, n.mac(mac), pod.path)
	n.ip("link set %s master cni0 up", dev)
	pod.ip("link set eth0 up")
}

// peer makes the kernel's own way to the pods of another node, through flannel.1.
func (n *node) peer(o *node) {
	n.t.Helper()
	n.ip("neigh add 10.1.%d.0 lladdr %s dev flannel.1 nud permanent", o.n, o.mac(vtep4MAC))
	n.ip("neigh add fd00:1:0:%d:: lladdr %s dev flannel.1 nud permanent", o.n, o.mac(vtep4MAC))
	n.command("bridge", strings.Fields(fmt.Sprintf("fdb add %s dev flannel.1 dst 192.0.2.%d", o.mac(vtep4MAC), o.n))...)
	n.command("bridge", strings.Fields(fmt.Sprintf("fdb add %s dev flannel-v6.1 dst 2001:db8::%d", o.mac(vtep6MAC), o.n))...)
	n.ip("neigh add fd00:1:0:%d:: lladdr %s dev flannel-v6.1 nud permanent", o.n, o.mac(vtep6MAC))
	n.ip("neigh add 10.1.%d.0 lladdr %s dev flannel-v6.1 nud permanent", o.n, o.mac(vtep6MAC))
	n.route(o, netstate.Encapsulate)
}

// route lets the kernel send to the pods of another node as the fast path does.
func (n *node) route(o *node, mode netstate.ShortcutMode) {
	n.t.Helper()
	dev, via4, via6 := "flannel.1", fmt.Sprintf("10.1.%d.0", o.n), fmt.Sprintf("fd00:1:0:%d::", o.n)
	switch mode {
	case netstate.ThroughVTEP:
		dev = "flannel-v6.1"
	case netstate.NextHop:
		dev, via4, via6 = "eth0", fmt.Sprintf("192.0.2.%d", o.n), fmt.Sprintf("2001:db8::%d", o.n)
	}
	_, _ = n.try("ip", "-6", "route", "del", fmt.Sprintf("fd00:1:0:%d::/64", o.n)) // a gateway may not be behind it
	n.ip("route replace 10.1.%d.0/24 via %s dev %s onlink", o.n, via4, dev)
	n.ip("-6 route replace fd00:1:0:%d::/64 via %s dev %s onlink", o.n, via6, dev)
}

// shortcuts are the ways to another node's pods.
func (n *node) shortcuts(o *node, mode netstate.ShortcutMode) netstate.State {
	state := netstate.State{}
	for _, dst := range []string{"10.1.%d.0/24", "fd00:1:0:%d::/64"} {
		s := netstate.Shortcut{Dst: netip.MustParsePrefix(fmt.Sprintf(dst, o.n)), Mode: mode, MTU: 1430}
		switch mode {
		case netstate.Encapsulate:
			s.Dev, s.From, s.VNI, s.Port = "eth0", "flannel.1", 1, 8472
			s.Local, s.Outer = n.addr("192.0.2.%d"), o.addr("192.0.2.%d")
			s.Src, s.MAC = n.mac(vtep4MAC), o.mac(vtep4MAC)
		case netstate.ThroughVTEP:
			s.Dev, s.From = "flannel-v6.1", "flannel-v6.1"
			s.Src, s.MAC = n.mac(vtep6MAC), o.mac(vtep6MAC)
		case netstate.NextHop:
			s.Dev, s.From, s.Outer = "eth0", "eth0", o.addr("192.0.2.%d")
			if s.Dst.Addr().Is6() {
				s.Outer = o.addr("2001:db8::%d")
			}
		}
		state.Add(s)
	}
	return state
}

// want is all that a node's fast path towards another has.
func (n *node) want(o *node, mode netstate.ShortcutMode) netstate.State {
	state := n.shortcuts(o, mode)
	for _, a := range []netip.Addr{n.pod4(), n.pod6()} {
		state.Add(netstate.PodPort{Addr: a, Dev: "pod", MAC: n.mac(podMAC), Bridge: n.mac(bridgeMAC)})
	}
	state.Add(netstate.Switch{SkipMark: 0x8000})
	state.Add(netstate.Program{Dev: "cni0", Name: netstate.FromPod})
	for _, dev := range []string{"flannel.1", "flannel-v6.1", "eth0"} {
		state.Add(netstate.Program{Dev: dev, Name: netstate.ToPod})
	}
	return state
}

// open opens the node's provider, again if there is one.
func (n *node) open() {
	n.t.Helper()
	if n.p != nil {
		n.p.Close()
	}
	var err error
	n.do(func() { n.p, err = Open(n.dir) })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(n.p.Close)
	n.p.tcx = n.p.tcx && !n.classic
	if err := n.p.Extend(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) diff(want netstate.State) (plan netstate.Plan) {
	n.t.Helper()
	observed := want
	if observed == nil {
		observed = netstate.State{}
	}
	var have netstate.State
	var err error
	n.do(func() { have, err = n.p.Observe(nil, observed) })
	if err != nil {
		n.t.Fatal(err)
	}
	return netstate.Diff(want, have)
}

// apply carries out one change.
func (n *node) apply(c netstate.Change) (err error) {
	n.do(func() { err = n.p.Apply(c) })
	return err
}

// bring makes one pass, which has to be enough.
func (n *node) bring(want netstate.State) {
	n.t.Helper()
	for _, c := range n.diff(want) {
		if err := n.apply(c); err != nil {
			n.t.Fatalf("%s: %v", c, err)
		}
	}
	if rest := n.diff(want); len(rest) > 0 {
		n.t.Fatalf("still to do:\n%s", rest)
	}
}

// fast makes two nodes with the fast path between them.
func fast(t *testing.T, mode netstate.ShortcutMode) (*node, *node) {
	t.Helper()
	return fastBy(t, mode, false)
}

// fastBy makes two nodes with the fast path between them, attached by cls_bpf or as the kernel can best.
func fastBy(t *testing.T, mode netstate.ShortcutMode, classic bool) (*node, *node) {
	t.Helper()
	a, b := pair(t)
	for _, n := range []*node{a, b} {
		n.classic = classic
		n.open()
	}
	a.become(b, mode)
	b.become(a, mode)
	return a, b
}

func (n *node) become(o *node, mode netstate.ShortcutMode) {
	n.t.Helper()
	n.route(o, mode)
	n.bring(n.want(o, mode))
}

// count returns how many packets of a program had a result.
func (n *node) count(program netstate.ProgramName, result string) uint64 {
	n.t.Helper()
	c, err := n.p.Counts()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, r := range c.Results {
		if r.Program == program && r.Result == result {
			return r.Packets
		}
	}
	n.t.Fatalf("there is no result %q", result)
	return 0
}

// counted returns all counts that are not zero, as text.
func (n *node) counted() string {
	c, err := n.p.Counts()
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("node %d: %d refreshes, %d failures", n.n, c.Refreshes, c.Failures)
	for _, r := range c.Results {
		if r.Packets > 0 {
			text += fmt.Sprintf(", %s %s %d", r.Program, r.Result, r.Packets)
		}
	}
	return text
}
