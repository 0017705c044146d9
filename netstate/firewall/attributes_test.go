package firewall

import (
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	kinds "github.com/twill-net/twill/netstate/attributes"
)

// TestAttributes: every attribute that the kernel reports of our tables, chains and rules is in the list of what is
// kept, derived or free.
func TestAttributes(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := New()
	defer f.Close()
	settle(t, f, wanted(netstate.NFTables))
	sh(t, "nft 'add table ip flannel-ipv4 { flags dormant; }'")
	r := f.reader()
	seen := map[string]int{}
	for object, kind := range map[string]uint16{
		"nftables table": unix.NFT_MSG_GETTABLE, "nftables chain": unix.NFT_MSG_GETCHAIN, "nftables rule": unix.NFT_MSG_GETRULE,
	} {
		tables := slices.DeleteFunc(kinds.Firewall(), func(a kinds.Table) bool { return a.Object != object })
		for _, m := range r.Call(kind, netlink.Dump, netstate.IPv4) {
			seen[object] += listed(t, object, tables, nil, m.Data[4:])
		}
	}
	if r.Err != nil || seen["nftables table"] < 4 || seen["nftables chain"] < 20 || seen["nftables rule"] < 40 {
		t.Errorf("%v; attributes that were looked up: %v", r.Err, seen)
	}
}

// listed fails if an attribute is not in the tables, and returns how many there are.
func listed(t *testing.T, object string, tables []kinds.Table, path []uint16, data []byte) (count int) {
	t.Helper()
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		count++
		id, value := a.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), a.Data
		if _, ok := kinds.Find(tables, kinds.Attributes, path, id); !ok {
			t.Errorf("%s: attribute %d in %v is not listed: % x", object, id, path, value)
		}
		inner := append(slices.Clone(path), id)
		nested := func(a kinds.Table) bool { return a.Place == kinds.Attributes && slices.Equal(a.Path, inner) }
		if slices.ContainsFunc(tables, nested) {
			count += listed(t, object, tables, inner, value)
		}
	}
	return count
}

// free is what anybody may alter, by ground; the last is left to the doctor.
var free = map[string][]string{
	"nftables": {
		"nft replace rule ip flannel-ipv4 forward handle $(nft -a list chain ip flannel-ipv4 forward | " +
			"sed -n 's/.*saddr.*handle //p') ip saddr 10.244.0.0/16 counter packets 7 bytes 7 accept comment mine",
		"nft add table ip other; nft 'add chain ip other forward { type filter hook forward priority 9; policy drop; }'",
		"nft add table inet flannel-ipv4; nft 'add chain inet flannel-ipv4 forward { type filter hook forward priority 9; }'",
		"iptables-nft -P FORWARD DROP && iptables-nft -A FORWARD -s 192.0.2.1 -j DROP",
		"ipset create other hash:ip",
	},
	"iptables": {
		"iptables -Z; iptables -t nat -Z FLANNEL-POSTRTG",
		"iptables -P FORWARD DROP; ip6tables -t mangle -P INPUT ACCEPT",
		"iptables -t raw -N FLANNEL-FWD; iptables -t nat -N FLANNEL-FWD",
		"iptables -A INPUT -j FLANNEL-FWD",
		"iptables -I FORWARD -s 192.0.2.1 -j DROP; iptables -A FORWARD -j ACCEPT",
		"ipset create other hash:ip",
	},
}

// TestFree: what Documentation/drift.md lists as free stays.
func TestFree(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "iptables-nft", "ipset")
		want := wanted(g.mode)
		if g.mode == netstate.NFTables {
			sh(t, "iptables-nft -N OTHER; iptables-nft -A FORWARD -j OTHER")
		}
		settle(t, f, want)
		for _, alter := range free[map[netstate.Mode]string{0: "nftables", 1: "iptables"}[g.mode]] {
			before := sh(t, "nft list ruleset; iptables-legacy-save; ipset list")
			sh(t, alter)
			if plan := netstate.Diff(want, observe(t, f)); len(plan) > 0 {
				t.Errorf("%s: the plan is\n%s", alter, plan)
			}
			if after := sh(t, "nft list ruleset; iptables-legacy-save; ipset list"); after == before &&
				!strings.Contains(alter, "-Z") {
				t.Errorf("%s altered nothing", alter)
			}
		}
	})
}
