package facts

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// nodes are what kubectl get nodes -o json prints of a cluster of flannel's, cut down: node3 has no annotations yet.
const nodes = `{"kind":"List","items":[
{"metadata":{"name":"node2","creationTimestamp":"2026-01-01T00:00:01Z","annotations":{"flannel.alpha.coreos.com/kube-subnet-manager":"true",
  "flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/public-ip":"192.168.33.102",
  "flannel.alpha.coreos.com/backend-data":"{\"VNI\":7,\"VtepMAC\":\"02:00:00:00:00:02\"}"}},"spec":{"podCIDRs":["10.244.2.0/24"]}},
{"metadata":{"name":"node1","creationTimestamp":"2026-01-01T00:00:00Z","annotations":{"flannel.alpha.coreos.com/kube-subnet-manager":"true",
  "flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/public-ip":"192.168.33.101",
  "flannel.alpha.coreos.com/backend-data":"{\"VNI\":7,\"VtepMAC\":\"02:00:00:00:00:01\"}"}},"spec":{"podCIDRs":["10.244.1.0/24"]}},
{"metadata":{"name":"node3"},"spec":{"podCIDRs":["10.244.3.0/24"]}}]}`

// TestLeasesOfNodes: Nodes and what flannel writes on its node are enough to know the network.
func TestLeasesOfNodes(t *testing.T) {
	env := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(env, []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{LeaseFile: "-", Leases: []byte(nodes), NetConf: filepath.Join(t.TempDir(), "none"), SubnetFile: env, Node: "node1"}
	saved, guessed, err := o.readLeases("-")
	if err != nil || !guessed {
		t.Fatal(guessed, err)
	}
	if want := `{"Backend":{"Type":"vxlan","VNI":7},"EnableIPv4":true,"Network":"10.244.0.0/16"}`; string(saved.Network) != want {
		t.Errorf("network %s, want %s", saved.Network, want)
	}
	if s := saved.Snapshot; s.Local.Node != "node1" || len(s.Peers) != 1 || s.Peers[0].Node != "node2" {
		t.Errorf("%+v", s)
	}
	o.Node = "node3"
	if _, _, err := o.readLeases("-"); err == nil || !strings.Contains(err.Error(), `no lease of node "node3": name the node with --node`) {
		t.Errorf("a node without a lease: %v", err)
	}
	o.SubnetFile = env + "x"
	if _, _, err := o.readLeases("-"); err == nil || !strings.Contains(err.Error(), "neither --net-config-path nor "+env+"x") {
		t.Errorf("without subnet.env: %v", err)
	}
}

// TestFlannels: what Twill alone writes is not missed on flannel's nodes, and what both write is.
func TestFlannels(t *testing.T) {
	link := netstate.VXLAN{Name: "flannel.1", VNI: 1, MTU: 1450, Up: true, Marked: true}
	route := netstate.Route{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("10.244.2.0"), Dev: "flannel.1", Onlink: true, Protocol: netstate.Protocol}
	neigh := netstate.Neigh{Dev: "flannel.1", IP: netip.MustParseAddr("10.244.2.0"), MAC: netstate.MAC{2}}
	want := netstate.State{}
	want.Add(link, route, neigh, netstate.Sysctl{Name: "net/ipv4/conf/cni0/arp_notify", Value: "1"}, netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"},
		netstate.Addr{Dev: "cni0", Prefix: netip.MustParsePrefix("10.244.1.1/24")}, netstate.Chain{Role: netstate.Postrouting})
	have := netstate.State{}
	theirs := route
	theirs.Protocol, link.Marked = 3, false
	have.Add(link, theirs, neigh, netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"})
	if !hasTwills(want) || hasTwills(have) {
		t.Errorf("the wanted state is taken for Twill's: %t, and flannel's: %t", hasTwills(want), hasTwills(have))
	}
	if plan := flannels(want, have, "cni0"); len(plan) > 0 {
		t.Errorf("a healthy node lacks %v", plan)
	}
	delete(have, neigh.Key())
	link.MTU = 1500
	have.Add(link, netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "0"})
	if plan := flannels(want, have, "cni0"); len(plan) != 3 {
		t.Errorf("the plan is %v, want the device, the neighbour and forwarding", plan)
	}
}
