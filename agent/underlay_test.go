package agent

import (
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// vagrant is a machine whose default route is a NAT interface that looks the same on every node.
func vagrant() []netstate.Interface {
	return []netstate.Interface{
		{Name: "lo", Up: true, Addrs: prefixes("127.0.0.1/8")},
		{Name: "eth0", MTU: 1500, Up: true, Addrs: prefixes("10.0.2.15/24"), OnLink: prefixes("10.0.2.0/24"), Default: [2]bool{true, false}},
		{Name: "eth1", MTU: 9000, Up: true, Addrs: prefixes("192.168.33.101/24", "192.168.33.201/24", "fd33::101/64"), Default: [2]bool{false, true}},
		{Name: "eth2", MTU: 1500, Up: false, Addrs: prefixes("192.168.44.101/24")},
		{Name: "cni0", MTU: 1450, Up: true, Owned: true, Addrs: prefixes("10.244.1.1/24")},
	}
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

func TestPick(t *testing.T) {
	for _, c := range []struct {
		name   string
		choice Choice
		is4    bool
		before backend.Underlay
		want   string // "dev local public"
	}{
		{name: "default route", is4: true, want: "eth0 10.0.2.15 10.0.2.15"},
		{name: "default route of the other family", is4: false, want: "eth1 fd33::101 fd33::101"},
		{name: "the node's InternalIP beats the default route", is4: true,
			choice: Choice{NodeIPs: addrs("192.168.33.101")}, want: "eth1 192.168.33.101 192.168.33.101"},
		{name: "an InternalIP that is not here does not", is4: true,
			choice: Choice{NodeIPs: addrs("203.0.113.7")}, want: "eth0 10.0.2.15 10.0.2.15"},
		{name: "iface by name", is4: true, choice: Choice{Names: []string{"eth9", "eth1"}}, want: "eth1 192.168.33.101 192.168.33.101"},
		{name: "iface by address", is4: true, choice: Choice{Names: []string{"192.168.33.201"}}, want: "eth1 192.168.33.201 192.168.33.201"},
		{name: "regex by name", is4: true, choice: Choice{Patterns: []*regexp.Regexp{regexp.MustCompile("^eth1$")}}, want: "eth1 192.168.33.101 192.168.33.101"},
		{name: "regex by address", is4: true, choice: Choice{Patterns: []*regexp.Regexp{regexp.MustCompile(`^192\.168\.`)}}, want: "eth1 192.168.33.101 192.168.33.101"},
		{name: "can reach", is4: true, choice: Choice{Reach: addrs("192.168.33.7")}, want: "eth1 192.168.33.101 192.168.33.101"},
		{name: "advertised elsewhere", is4: true, choice: Choice{Names: []string{"eth1"}, Public: addrs("203.0.113.7", "2001:db8::7")},
			want: "eth1 192.168.33.101 203.0.113.7"},
		{name: "stays with its address", is4: true, choice: Choice{Names: []string{"eth1"}},
			before: backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("192.168.33.201")}, want: "eth1 192.168.33.201 192.168.33.201"},
		{name: "follows when its address is gone", is4: true, choice: Choice{Names: []string{"eth1"}},
			before: backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("192.168.33.250")}, want: "eth1 192.168.33.101 192.168.33.101"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := c.choice.Pick(vagrant(), c.is4, c.before, func(netip.Addr) (string, error) { return "eth1", nil })
			if err != nil {
				t.Fatal(err)
			}
			if got := u.Dev + " " + u.Local.String() + " " + u.Public.String(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestPickSaysWhatThereWas(t *testing.T) {
	for _, c := range []struct {
		choice Choice
		is4    bool
		want   string
	}{
		{Choice{Names: []string{"eth7"}}, true, "no interface with an IPv4 address matches --iface eth7; there are: lo (127.0.0.1/8), eth0 (10.0.2.15/24), " +
			"eth1 (192.168.33.101/24 192.168.33.201/24 fd33::101/64), eth2 (192.168.44.101/24 down)"},
		{Choice{Names: []string{"eth0"}}, false, "no interface with an IPv6 address matches --iface eth0"},
		{Choice{Names: []string{"eth2"}}, true, "no interface with an IPv4 address matches --iface eth2"},
		{Choice{Names: []string{"cni0"}}, true, "no interface with an IPv4 address matches --iface cni0"},
	} {
		_, err := c.choice.Pick(vagrant(), c.is4, backend.Underlay{}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	_, err := Choice{Reach: addrs("198.51.100.1")}.Pick(vagrant(), true, backend.Underlay{}, func(netip.Addr) (string, error) {
		return "", errors.New("network is unreachable")
	})
	if err == nil || err.Error() != "network is unreachable" {
		t.Errorf("got %v", err)
	}
}

// TestBridgeMAC: pods have the bridge's MAC in their ARP caches, so the one that it had stays wanted.
func TestBridgeMAC(t *testing.T) {
	c := Config{Base: backend.BaseConfig{Bridge: "cni0"}}
	was, is := netstate.MAC{2, 0, 0, 0, 0, 1}, netstate.MAC{2, 0, 0, 0, 0, 2}
	for name, test := range map[string]struct {
		before     map[string]netstate.MAC
		interfaces []netstate.Interface
		want       netstate.MAC
	}{
		"altered":       {map[string]netstate.MAC{"cni0": was}, []netstate.Interface{{Name: "cni0", MAC: is}}, was},
		"never seen":    {nil, []netstate.Interface{{Name: "cni0", MAC: is}}, is},
		"deleted":       {map[string]netstate.MAC{"cni0": was}, nil, netstate.MAC{}},
		"other devices": {map[string]netstate.MAC{"eth0": was}, []netstate.Interface{{Name: "cni0", MAC: is}}, is},
	} {
		node, err := c.NodeFrom(test.interfaces, backend.Node{MACs: test.before}, nil)
		if err != nil || node.MACs["cni0"] != test.want {
			t.Errorf("%s: got %s %v, want %s", name, node.MACs["cni0"], err, test.want)
		}
	}
}
