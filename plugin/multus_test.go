package plugin

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// callOn is must for another interface of the pod than eth0.
func (n *node) callOn(dev, cmd, id, pod string, conf []byte) []byte {
	n.t.Helper()
	c := n.command(cmd, id, pod, conf)
	c.Env = append(c.Env, "CNI_IFNAME="+dev)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	inside(n.t, n.ns, c.Start)
	r := n.reply(c.Wait(), &stdout, &stderr)
	if r.failed != nil || len(r.stderr) > 0 {
		n.t.Fatalf("%s %s %s: %v %s", cmd, id, dev, r.failed, r.stderr)
	}
	return r.stdout
}

// TestSecondNetwork calls the plugin as Multus does: each pod gets eth0 from the cluster's network, and net1 from a
// network with a name, a bridge and addresses of its own. Packets pass in both, the way out stays eth0's, and each
// network's DEL leaves the other one alone.
func TestSecondNetwork(t *testing.T) {
	n := newNode(t, envV4)
	second := n.config(map[string]any{"name": "second", "bridge": "br1", "isDefaultGateway": false, "ipam": map[string]any{
		"subnet": "10.99.1.0/24", "gateway": "10.99.1.1", "dataDir": filepath.Join(n.dir, "networks")}})
	pods := map[string]string{"a": newNamespace(t), "b": newNamespace(t)}
	var addrs []netip.Addr // of b
	for _, id := range []string{"a", "b"} {
		addrs = addresses(t, n.must("ADD", id, pods[id], n.config(nil)))
		addrs = append(addrs, addresses(t, n.callOn("net1", "ADD", id, pods[id], second))...)
	}
	for _, addr := range append(addrs, netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.99.1.1")) {
		mustPing(t, pods["a"], addr)
	}
	if got := defaultDevices(t, pods["a"]); !slices.Equal(got, []string{"eth0"}) {
		t.Errorf("the way out of a pod leads through %v, want eth0", got)
	}
	n.callOn("net1", "DEL", "a", pods["a"], second)
	mustPing(t, pods["a"], addrs[0])
	n.must("DEL", "b", pods["b"], n.config(nil))
	mustPing(t, n.ns, addrs[1])
	if got := n.reservedIn(t, "second"); !slices.Equal(got, []string{addrs[1].String()}) {
		t.Errorf("reserved in the second network: %v, want b's %s", got, addrs[1])
	}
	if got := n.reservedIn(t, "cbr0"); len(got) != 1 || got[0] == addrs[0].String() {
		t.Errorf("reserved in the cluster's network: %v, want a's alone", got)
	}
}

// defaultDevices are the interfaces that the default routes of a namespace lead through.
func defaultDevices(t *testing.T, ns string) (devices []string) {
	t.Helper()
	h := netlinkIn(t, ns)
	routes, err := h.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		link, err := h.LinkByIndex(r.LinkIndex)
		if err != nil {
			t.Fatal(err)
		}
		devices = append(devices, link.Attrs().Name)
	}
	return devices
}

// reservedIn are the addresses that are reserved under a network's name.
func (n *node) reservedIn(t *testing.T, network string) (addrs []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(n.dir, "networks", network))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if addr, err := netip.ParseAddr(f.Name()); err == nil {
			addrs = append(addrs, addr.String())
		}
	}
	return addrs
}
