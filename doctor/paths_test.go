package doctor

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/ipip"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestConnectedRoutesStay: the kernel's route to a network that the machine is on shadows pods, and it goes with the address
// alone. No command deletes it.
func TestConnectedRoutesStay(t *testing.T) {
	for lan, want := range map[string]string{
		"10.244.2.65/26": "packets to peer n2",
		"10.244.1.65/26": "packets to this node's own pods",
	} {
		f, _ := pair(t)
		f.Interfaces = append(f.Interfaces, netstate.Interface{Name: "lan0", Up: true, Running: true, Addrs: []netip.Prefix{prefix(lan)}})
		f.Routes = append(f.Routes, Route{Dst: prefix(lan).Masked(), Dev: "lan0"})
		got := Check(f)
		if len(got) != 1 || got[0].ID != "network-overlap" || got[0].Command != "" {
			t.Errorf("a network among %s: got %+v, want network-overlap alone, without a command", want, got)
		}
	}
}

// TestMasqueradeOfOthersStays: where Docker's network has the pods' addresses, its containers need the rule that catches pods
// too. No command deletes it.
func TestMasqueradeOfOthersStays(t *testing.T) {
	for _, ofDocker := range []bool{true, false} {
		f, _ := pair(t)
		f.Chains = rules.ParseSave("ip", "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 10.244.0.0/16 ! -o docker0 -j MASQUERADE\nCOMMIT\n")
		if ofDocker {
			f.Interfaces = append(f.Interfaces, netstate.Interface{Name: "docker0", Up: true, Running: true,
				Addrs: []netip.Prefix{prefix("10.244.9.1/16")}})
		}
		got := Check(f)
		if len(got) == 0 || got[0].ID != "masquerade-catches-pods" || (got[0].Command == "") != ofDocker {
			t.Errorf("Docker's network: %t: got %+v, want masquerade-catches-pods, with a command: %t", ofDocker, got, !ofDocker)
		}
	}
}

// TestOwnByComment: a rule of others that speaks of the agent's in its comment is theirs, and has a command.
func TestOwnByComment(t *testing.T) {
	for comment, others := range map[string]bool{"before FLANNEL-FWD": true, "for comment twill x": true, "twill first": false} {
		f, _ := pair(t)
		f.Chains = rules.ParseSave("ip", "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m comment --comment \""+comment+"\" -j DROP\nCOMMIT\n")
		if got := Check(f); len(got) == 0 || got[0].ID != "forward-rejected" || (got[0].Command != "") != others {
			t.Errorf("%s: got %+v, want forward-rejected, with a command: %t", comment, got, others)
		}
	}
}

// TestOwnMasqueradeStays: the rules of the iptables mode masquerade what goes to a peer that is left out, as to any other
// address, which is no finding. No command deletes a rule of Twill's, which the agent would put back.
func TestOwnMasqueradeStays(t *testing.T) {
	const begin = "*nat\n:POSTROUTING ACCEPT [0:0]\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -j FLANNEL-POSTRTG\n"
	const skip = "-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -o flannel.1 -j RETURN\n-A FLANNEL-POSTRTG -d 10.244.1.0/24 -j RETURN\n"
	const end = "-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\nCOMMIT\n"
	f, _ := pair(t)
	f.Chains = rules.ParseSave("ip", begin+skip+end)
	if got := Check(f); len(got) > 0 {
		t.Errorf("as the agent keeps them: got %+v, want nothing", got)
	}
	f.Chains = rules.ParseSave("ip", begin+end)
	if got := Check(f); len(got) == 0 || got[0].ID != "masquerade-catches-pods" || got[0].Command != "" {
		t.Errorf("a rule is gone: got %+v, want masquerade-catches-pods without a command", got)
	}
	f.Chains = rules.ParseSave("ip", begin+skip+end)
	f.Skips = []subnet.Skip{{Node: "n2", Code: subnet.LocalNetwork, Detail: "its subnet contains an address on lo"}}
	without(&f, func(o netstate.Object) bool {
		r, ok := o.(netstate.Route)
		return ok && r.Dst == prefix("10.244.2.0/24")
	})
	f.Want = f.Have
	f.Plan = nil
	for _, x := range Check(f) {
		if x.ID != "peer-skipped" {
			t.Errorf("a peer is left out: got %+v, want peer-skipped alone", x)
		}
	}
}

// TestWrappingOfIPIP: the firewall is asked about the protocol that is really on the wire, 4 or 41.
func TestWrappingOfIPIP(t *testing.T) {
	f := healthy()
	node := backend.Node{Underlays: []backend.Underlay{{Dev: "eth0", Local: addr("192.0.2.1"), MTU: 1500}, {Dev: "eth1", Local: addr("2001:db8::1"), MTU: 1500}}}
	lease := func(name, subnet4, underlay4, subnet6, underlay6 string) subnet.Lease {
		return subnet.Lease{Node: name, Backend: "ipip", Stacks: []subnet.Stack{
			{Subnet: prefix(subnet4), Underlay: addr(underlay4)}, {Subnet: prefix(subnet6), Underlay: addr(underlay6)}}}
	}
	peer := lease("n2", "10.244.2.0/24", "192.0.2.2", "fc00:0:0:2::/64", "2001:db8::2")
	b, _, err := ipip.New([]netip.Prefix{prefix("10.244.0.0/16"), prefix("fc00::/48")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Underlay = node
	f.Want, _ = b.Desired(node, subnet.Snapshot{Local: lease("n1", "10.244.1.0/24", "192.0.2.1", "fc00:0:0:1::/64", "2001:db8::1"), Peers: []subnet.Lease{peer}})
	want := []wrapping{{"IPIP", addr("192.0.2.1"), "eth0", "ipip", 0}, {"IPIP", addr("2001:db8::1"), "eth1", "ipv6", 0}}
	for i, s := range peer.Stacks {
		if got, ok := f.wrapping(Path{Subnet: s.Subnet, Underlay: s.Underlay}); !ok || got != want[i] {
			t.Errorf("around packets to %s: %+v, %t, want %+v", s.Subnet, got, ok, want[i])
		}
	}
}
