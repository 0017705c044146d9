package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// mtuModel is a node whose config, NIC and pods change. Its pods are made with what subnet.env says, as by the CNI plugin.
type mtuModel struct {
	*testing.T
	random *rand.Rand
	Planner
	nic   int
	dual  bool
	ports []netstate.Interface
	made  int
	log   []string
}

// TestPortsBoundMTU: whatever the backend, the NIC and the pods of a node were before, no port of the bridge has a smaller
// MTU than the bridge, and new pods have the bridge's.
func TestPortsBoundMTU(t *testing.T) {
	for seed := range uint64(20) {
		m := mtuModel{T: t, random: rand.New(rand.NewPCG(seed, 0)), nic: 1500}
		m.configure()
		for range 60 {
			m.act()
			m.judge(seed)
		}
	}
}

// act changes one thing.
func (m *mtuModel) act() {
	switch n := m.random.IntN(len(m.ports) + 1); m.random.IntN(7) {
	case 0:
		m.configure()
	case 1:
		m.nic = []int{1400, 1500, 9000}[m.random.IntN(3)]
		m.log = append(m.log, fmt.Sprint("NIC ", m.nic))
	case 2, 3:
		m.addPod(m.PodMTU(m.facts()), m.random.IntN(5) > 0)
	case 4:
		m.addPod(1300, true) // by a CNI config with an MTU of its own
	case 5:
		if n < len(m.ports) {
			m.log = append(m.log, "gone: "+m.ports[n].Name)
			m.ports = append(m.ports[:n:n], m.ports[n+1:]...)
		}
	case 6: // somebody alters a port, which gets back what it had if it is marked
		if n < len(m.ports) && m.ports[n].Port.Name != "" {
			m.ports[n].MTU = 700
			m.log = append(m.log, "altered: "+m.ports[n].Name)
		}
	}
}

// configure draws a network config.
func (m *mtuModel) configure() {
	m.dual = m.random.IntN(2) == 0
	name := []string{"vxlan", "host-gw", "udp", "wireguard", "ipip"}[m.random.IntN(5)]
	network := fmt.Sprintf(`{"Network": "10.244.0.0/16", "Backend": {"Type": %q}}`, name)
	if m.dual {
		network = strings.Replace(network, "{", `{"EnableIPv6": true, "IPv6Network": "fd00:10:244::/48", `, 1)
	}
	config, err := subnet.ParseConfig([]byte(network))
	must(m.T, err)
	b, _, err := registry.New(config.Backend, config.Pools, config.Options)
	must(m.T, err)
	m.Planner = Planner{Node: "node1", Network: config, Backend: b, Choice: Choice{Names: []string{"eth1"}}, WireGuard: true,
		Base: backend.BaseConfig{Bridge: "cni0"}}
	m.log = append(m.log, "config "+network)
}

// addPod adds a port of the bridge. One that is not marked is flannel's.
func (m *mtuModel) addPod(mtu int, marked bool) {
	m.made++
	i := netstate.Interface{Name: fmt.Sprint("veth", m.made), MTU: mtu, Up: true, Owned: true, Master: "cni0"}
	if marked {
		i.Port = netstate.Port{Name: i.Name, Bridge: "cni0", MTU: mtu, Up: true}
	}
	m.ports = append(m.ports, i)
	m.log = append(m.log, fmt.Sprintf("pod: %s of %d bytes, marked %t", i.Name, mtu, marked))
}

func (m *mtuModel) facts() backend.Node {
	nic := netstate.Interface{Name: "eth1", MTU: m.nic, Up: true, Running: true, Ethernet: true,
		Addrs:  []netip.Prefix{netip.MustParsePrefix("192.168.33.101/24"), netip.MustParsePrefix("fd33::101/64")},
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.33.0/24"), netip.MustParsePrefix("fd33::/64")}}
	node, err := m.Facts(append([]netstate.Interface{nic}, m.ports...), backend.Node{}, nil)
	must(m.T, err)
	return node
}

// judge compares the wanted bridge with its ports, as they are wanted.
func (m *mtuModel) judge(seed uint64) {
	m.Helper()
	node := m.facts()
	lease := subnet.Lease{Node: "node1", Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.1.0/24")}}}
	if m.dual {
		lease.Stacks = append(lease.Stacks, subnet.Stack{Subnet: netip.MustParsePrefix("fd00:10:244:1::/64")})
	}
	want, _ := m.Desired(node, subnet.Snapshot{Local: lease})
	bridge, _ := want[netstate.Key{Kind: netstate.KindLink, Name: "cni0"}].(netstate.Bridge)
	full := m.Backend.MTU(node)
	least := full
	for _, p := range m.ports {
		mtu := p.MTU
		if port, ok := want[netstate.Port{Name: p.Name}.Key()].(netstate.Port); ok {
			mtu = port.MTU
		}
		least = min(least, mtu)
	}
	a := Agent{Config: Config{Planner: m.Planner}}
	if env := a.envOf(node, lease); bridge.MTU != least || env.MTU != least {
		m.Fatalf("seed %d: the bridge has an MTU of %d and new pods get %d: want %d, of the backend's %d and what ports have, after\n%s",
			seed, bridge.MTU, env.MTU, least, full, strings.Join(m.log, "\n"))
	}
}

// TestReportPodMTU: the log says once why a node's pods do not get what the backend has.
func TestReportPodMTU(t *testing.T) {
	network, err := subnet.ParseConfig([]byte(netConf))
	must(t, err)
	b, _, err := registry.New(network.Backend, network.Pools, network.Options)
	must(t, err)
	var log bytes.Buffer
	a := New(Config{Planner: Planner{Backend: b, Base: backend.BaseConfig{Bridge: "cni0"}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	node := backend.Node{Underlays: []backend.Underlay{{Dev: "eth1", Local: netip.MustParseAddr("192.168.33.101"), MTU: 1500}}}
	for _, node.PortMTUs = range []map[int]int{nil, {1450: 3}, {9000: 1}} {
		a.reportPodMTU(backend.Input{Node: node})
	}
	if log.Len() > 0 {
		t.Errorf("logged %s", log.String())
	}
	for _, node.PortMTUs = range []map[int]int{{1400: 2, 1420: 1, 1450: 4}, {1400: 1, 1450: 4}} {
		a.reportPodMTU(backend.Input{Node: node})
	}
	const want = "cni0 and new pods keep an MTU of 1400 bytes, and not 1450, until 3 pods are gone that have less"
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), want) {
		t.Errorf("logged %s, want once: %s", log.String(), want)
	}
}

// TestPodMTUKeepsIPv6: a port of too small an MTU for IPv6 does not take IPv6 from all pods, and none at all is no limit.
func TestPodMTUKeepsIPv6(t *testing.T) {
	network, err := subnet.ParseConfig([]byte(netConf))
	must(t, err)
	b, _, err := registry.New(network.Backend, network.Pools, network.Options)
	must(t, err)
	p := Planner{Backend: b}
	four := backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("192.168.33.101"), MTU: 1500}
	six := backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("fd33::101"), MTU: 1500}
	for _, test := range []struct {
		underlays []backend.Underlay
		ports     map[int]int
		want      int
	}{
		{[]backend.Underlay{four}, nil, 1450},
		{[]backend.Underlay{four}, map[int]int{9000: 1}, 1450},
		{[]backend.Underlay{four}, map[int]int{1200: 1, 1400: 2}, 1200},
		{[]backend.Underlay{four}, map[int]int{0: 1}, 68},
		{[]backend.Underlay{four, six}, map[int]int{1200: 1, 1400: 2}, 1280},
	} {
		if got := p.PodMTU(backend.Node{Underlays: test.underlays, PortMTUs: test.ports}); got != test.want {
			t.Errorf("underlays %v, ports %v: an MTU of %d, want %d", test.underlays, test.ports, got, test.want)
		}
	}
}
