package e2e

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// route checks by which device each node sends to each other node's pods.
func (c cluster) route() {
	c.Helper()
	for _, from := range c.lab.Nodes() {
		for _, to := range c.lab.Nodes() {
			if from == to {
				continue
			}
			for _, addr := range to.Pods()[0].Addrs {
				got, want := outDev(c.T, from, addr), c.wantDev(from, to, netstate.FamilyOf(addr))
				if got != want {
					c.Errorf("%s sends to %s of %s through %s, want %s", from.Name, addr, to.Name, got, want)
				}
			}
		}
	}
}

func (c cluster) wantDev(from, to *lab.Node, f netstate.Family) string {
	spec := c.lab.Spec()
	sameSegment := spec.Underlay == lab.L2 || from.Number%2 == to.Number%2
	if spec.DirectRouting && sameSegment {
		return "eth1"
	}
	return cmp.Or(c.carrier().devices[f], "eth1")
}

func outDev(t *testing.T, n *lab.Node, to netip.Addr) (dev string) {
	t.Helper()
	err := n.Links(func(nl *netlink.Handle) error {
		routes, err := nl.RouteGet(to.AsSlice())
		if err != nil {
			return err
		}
		link, err := nl.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return err
		}
		dev = link.Attrs().Name
		return nil
	})
	if err != nil {
		t.Fatalf("route of %s to %s: %v", n.Name, to, err)
	}
	return dev
}

func underlays(n *lab.Node) (texts []string) {
	for _, a := range n.Underlay() {
		texts = append(texts, a.String())
	}
	return texts
}

func subnets(n *lab.Node) (texts []string) {
	for _, s := range n.Subnets() {
		texts = append(texts, s.String())
	}
	return texts
}

// traces are the routes, neighbours and FDB entries of all nodes' overlay that name one of these subnets,
// addresses or MACs. What the kernel learned on eth1 by itself is not the agent's.
func (c cluster) traces(what []string) (found []string) {
	c.Helper()
	for _, n := range c.lab.Nodes() {
		for _, entry := range entries(c.T, n) {
			for _, w := range what {
				if strings.Contains(entry, " "+w+" ") && !strings.Contains(entry, " "+n.Underlay()[0].String()+" ") {
					found = append(found, n.Name+":"+entry)
				}
			}
		}
	}
	return found
}

func entries(t *testing.T, n *lab.Node) (all []string) {
	t.Helper()
	err := n.Links(func(nl *netlink.Handle) error {
		routes, err := nl.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			all = append(all, fmt.Sprintf(" route %v via %v ", r.Dst, r.Gw))
		}
		for _, dev := range []string{"flannel.1", "flannel-v6.1"} {
			link, err := nl.LinkByName(dev)
			if err != nil {
				continue
			}
			for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
				neighs, err := nl.NeighList(link.Attrs().Index, family)
				if err != nil {
					return err
				}
				for _, e := range neighs {
					all = append(all, fmt.Sprintf(" entry on %s %v %v ", dev, e.IP, e.HardwareAddr))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("entries of %s: %v", n.Name, err)
	}
	return all
}

// keep alters nothing.
func keep(*netlink.Handle, netlink.Link) error { return nil }

// vteps alters the node's overlay devices and returns the MACs that the VXLAN devices among them had before.
func vteps(t *testing.T, n *lab.Node, alter func(*netlink.Handle, netlink.Link) error) map[string]string {
	t.Helper()
	macs := map[string]string{}
	err := n.Links(func(nl *netlink.Handle) error {
		for _, dev := range overlays {
			link, err := nl.LinkByName(dev)
			if err != nil {
				continue
			}
			if link.Type() == "vxlan" {
				macs[dev] = link.Attrs().HardwareAddr.String()
			}
			if err := alter(nl, link); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("overlay devices of %s: %v", n.Name, err)
	}
	return macs
}

// fragments is how many fragments all nodes made so far. An outer packet that is too large for the underlay
// does not get lost: it is fragmented, which a ping does not show.
func fragments(t *testing.T, l *lab.Lab) (sum int) {
	t.Helper()
	for _, n := range l.Nodes() {
		err := n.Do(func() error {
			count, err := fragmentsHere()
			sum += count
			return err
		})
		if err != nil {
			t.Fatalf("fragments of %s: %v", n.Name, err)
		}
	}
	return sum
}

func fragmentsHere() (sum int, err error) {
	v6, err := os.ReadFile("/proc/thread-self/net/snmp6") // "Ip6FragCreates   0"
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(v6)) {
		var n int
		if _, err := fmt.Sscanf(line, "Ip6FragCreates %d", &n); err == nil {
			sum += n
		}
	}
	v4, err := os.ReadFile("/proc/thread-self/net/snmp") // "Ip: Forwarding …\nIp: 1 …"
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(v4), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	for i, name := range names {
		if name == "FragCreates" {
			var n int
			if _, err := fmt.Sscan(values[i], &n); err != nil {
				return 0, err
			}
			return sum + n, nil
		}
	}
	return 0, fmt.Errorf("no FragCreates in %q", lines[0])
}
