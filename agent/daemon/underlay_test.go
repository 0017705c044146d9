package daemon

import (
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/subnet"
)

// nics is a namespace with two interfaces: eth0 with the default route, eth1 between the nodes.
type nics struct {
	*testing.T
	kernel *kernel.Kernel
}

// newNICs moves the test's goroutine into a namespace that ends with it.
func newNICs(t *testing.T) nics {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v (this test needs root)", err)
	}
	k, err := kernel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	n := nics{t, k}
	n.run("ip link add eth0 type veth peer name peer0", "ip link add eth1 type veth peer name peer1", "ip link set peer0 up",
		"ip link set peer1 up", "ip link set eth0 up", "ip link set eth1 up", "ip addr add 10.0.2.15/24 dev eth0",
		"ip addr add 192.168.33.101/24 dev eth1", "ip route add default via 10.0.2.2")
	return n
}

func (n nics) run(lines ...string) {
	n.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			n.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}

// facts returns the node's underlay as the agent sees it, as it was before if there is an error.
func (n nics) facts(choice agent.Choice, before backend.Node) (backend.Node, string) {
	n.Helper()
	interfaces, err := n.kernel.Interfaces(n.Context())
	if err != nil {
		n.Fatal(err)
	}
	c := agent.Planner{Node: "node1", Choice: choice, Network: subnet.Config{Pools: []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/16")}}}}
	node, err := c.Facts(interfaces, before, n.kernel.RouteTo)
	if len(node.Underlays) == 0 {
		return node, "none"
	}
	text := node.Underlays[0].Dev + " " + node.Underlays[0].Local.String()
	if err != nil {
		text += ", " + strings.SplitN(err.Error(), ";", 2)[0]
	}
	return node, text
}

// TestNodeIPOnRealLinks: the interface that has the node's InternalIP is lost in every way, and the
// overlay stays there.
func TestNodeIPOnRealLinks(t *testing.T) {
	own := agent.Choice{NodeIPs: []netip.Addr{netip.MustParseAddr("192.168.33.101")}, Settled: true}
	moved := agent.Choice{NodeIPs: []netip.Addr{netip.MustParseAddr("192.168.33.150")}, Settled: true}
	const gone = "eth1 192.168.33.101, no interface with an IPv4 address matches the node's InternalIP any more, eth1 with 192.168.33.101 stays"
	n := newNICs(t)
	var node backend.Node
	for _, step := range []struct {
		commands string
		choice   agent.Choice
		want     string
	}{
		{"", own, "eth1 192.168.33.101"},
		{"ip link set eth1 down", own, "eth1 192.168.33.101, the interface eth1, which matches the node's InternalIP, is down"},
		{"ip link set eth1 up", own, "eth1 192.168.33.101"},
		{"ip addr del 192.168.33.101/24 dev eth1", own, gone},
		{"ip addr add 192.168.33.150/24 dev eth1", own, gone}, // until the cluster knows of it
		{"", moved, "eth1 192.168.33.150"},
		{"ip link del eth1", moved, "eth1 192.168.33.150, no interface with an IPv4 address matches the node's InternalIP any more, eth1 with 192.168.33.150 stays"},
		{"ip addr add 192.168.33.150/24 dev eth0", moved, "eth0 192.168.33.150"},
	} {
		if step.commands != "" {
			n.run(step.commands)
		}
		var got string
		if node, got = n.facts(step.choice, node); got != step.want {
			t.Errorf("after %q:\n got %s\nwant %s", step.commands, got, step.want)
		}
	}
}

// TestRoutesOnRealLinks: what the kernel says of routes decides for --iface-can-reach and for the
// default route.
func TestRoutesOnRealLinks(t *testing.T) {
	n := newNICs(t)
	n.run("ip addr add 192.168.33.201/24 dev eth1", "ip route add 203.0.113.0/24 via 192.168.33.1 src 192.168.33.201")
	for _, c := range []struct {
		choice agent.Choice
		want   string
	}{
		{agent.Choice{}, "eth0 10.0.2.15"},
		{agent.Choice{Reach: netip.MustParseAddr("192.168.33.7")}, "eth1 192.168.33.101"},
		{agent.Choice{Reach: netip.MustParseAddr("203.0.113.7")}, "eth1 192.168.33.201"},
		{agent.Choice{Names: []string{"eth7"}, Reach: netip.MustParseAddr("8.8.8.8")}, "eth0 10.0.2.15"},
		{agent.Choice{Names: []string{"eth7"}, Reach: netip.MustParseAddr("2001:db8::8")}, "none"},
	} {
		if _, got := n.facts(c.choice, backend.Node{}); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.choice, got, c.want)
		}
	}
}
