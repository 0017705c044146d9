package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// everyKind is a state with an object of each kind that this kernel can hold, on u0.
func everyKind(t *testing.T, k *Kernel) netstate.State {
	t.Helper()
	for _, c := range []string{"ip link add u0 type veth peer name u1", "ip link set u0 up", "ip link set u1 up",
		"ip addr add 192.0.2.1/24 dev u0", "ip addr add 2001:db8::1/64 dev u0 nodad", "ip link add br9 type bridge"} {
		if err := command(c); err != nil {
			t.Fatal(err)
		}
	}
	mac := func(last byte) netstate.MAC { return netstate.MAC{2, 0, 0, 0, 0, last} }
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	want := netstate.NewState(
		netstate.VXLAN{Name: "x4", VNI: 1, Port: 8472, Dev: "u0", Local: addr("192.0.2.1"), MTU: 1450, MAC: mac(4), Up: true,
			Marked: true},
		netstate.VXLAN{Name: "x6", VNI: 1, Port: 8472, Dev: "u0", Local: addr("2001:db8::1"), MTU: 1430, MAC: mac(6),
			Up: true, Marked: true},
		netstate.Bridge{Name: "br0", MTU: 1430, MAC: mac(1), Up: true, Marked: true},
		netstate.Tun{Name: "tun0", MTU: 1430, Up: true, Marked: true},
		netstate.Addr{Dev: "br0", Prefix: prefix("10.244.1.1/24")},
		netstate.Addr{Dev: "br0", Prefix: prefix("fc00:1::1/64"), NoDAD: true},
		netstate.Addr{Dev: "x4", Prefix: prefix("10.244.1.0/32")},
		netstate.Neigh{Dev: "x4", IP: addr("10.244.2.0"), MAC: mac(0x42)},
		netstate.Neigh{Dev: "x6", IP: addr("fc00:2::"), MAC: mac(0x62)},
		netstate.FDB{Dev: "x4", MAC: mac(0x42), Dst: addr("192.0.2.2")},
		netstate.FDB{Dev: "x6", MAC: mac(0x62), Dst: addr("2001:db8::2")},
		netstate.Route{Dst: prefix("10.244.2.0/24"), Via: addr("10.244.2.0"), Dev: "x4", Onlink: true,
			Protocol: netstate.Protocol},
		netstate.Route{Dst: prefix("fc00:2::/64"), Via: addr("fc00:2::"), Dev: "x6", Metric: 1024, Onlink: true,
			Protocol: netstate.Protocol},
		netstate.Route{Dst: prefix("10.244.1.0/24"), Metric: 4096, Blackhole: true, Protocol: netstate.Protocol},
	)
	for _, o := range []netstate.Object{
		netstate.Tunnel{Name: "ti", Local: addr("192.0.2.1"), MTU: 1480, Up: true, Marked: true},
		netstate.Tunnel{Name: "t6", External: true, MTU: 1460, Up: true, Marked: true},
		netstate.WireGuard{Name: "wg", MTU: 1420, Up: true, Marked: true},
	} {
		if k.Apply(t.Context(), netstate.Plan{{Want: o}}) == nil { // a small kernel has none of these
			want.Add(o)
		}
	}
	settle(t, k, want)
	return want
}

// settle makes the rounds that the agent makes.
func settle(t *testing.T, k *Kernel, want netstate.State) {
	t.Helper()
	var plan netstate.Plan
	for range 4 {
		have, err := k.Observe(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if plan = netstate.Diff(want, have); len(plan) == 0 {
			return
		}
		if err := k.Apply(t.Context(), plan); err != nil {
			t.Errorf("apply: %v", err)
		}
	}
	t.Errorf("after four rounds the plan is still\n%s", plan)
}

// report is a kind of object's messages: how they are asked for, how long their header is, and its flags.
type report struct {
	object  string
	request int
	family  byte
	header  int
	index   func(m []byte) int
	flags   func(m []byte) uint32
}

func reports() []report {
	attribute := func(header int, id uint16) func([]byte) int {
		return func(m []byte) int { return rtnl.Int(rtnl.Attribute(m, header, id)) }
	}
	at4 := func(m []byte) int { return rtnl.Int(m[4:]) }
	ntf := func(m []byte) uint32 { return uint32(m[10]) }
	ifa := func(m []byte) uint32 {
		return binary.NativeEndian.Uint32(rtnl.Attribute(m, unix.SizeofIfAddrmsg, unix.IFA_FLAGS))
	}
	rtm := func(m []byte) uint32 { return binary.NativeEndian.Uint32(m[8:]) }
	return []report{
		{"link", unix.RTM_GETLINK, unix.AF_UNSPEC, unix.SizeofIfInfomsg, at4, rtm},
		{"addr", unix.RTM_GETADDR, unix.AF_INET, unix.SizeofIfAddrmsg, at4, ifa},
		{"addr", unix.RTM_GETADDR, unix.AF_INET6, unix.SizeofIfAddrmsg, at4, ifa},
		{"neigh", unix.RTM_GETNEIGH, unix.AF_INET, rtnl.SizeofNdMsg, at4, ntf},
		{"neigh", unix.RTM_GETNEIGH, unix.AF_INET6, rtnl.SizeofNdMsg, at4, ntf},
		{"fdb", unix.RTM_GETNEIGH, unix.AF_BRIDGE, rtnl.SizeofNdMsg, at4, ntf},
		{"route", unix.RTM_GETROUTE, unix.AF_INET, unix.SizeofRtMsg, attribute(unix.SizeofRtMsg, unix.RTA_OIF), rtm},
		{"route", unix.RTM_GETROUTE, unix.AF_INET6, unix.SizeofRtMsg, attribute(unix.SizeofRtMsg, unix.RTA_OIF), rtm},
	}
}

// TestEveryAttribute: what this kernel reports of objects of ours has a row in the tables, also what only others set.
func TestEveryAttribute(t *testing.T) {
	k := fresh(t).Kernel.(*Kernel)
	want := everyKind(t, k)
	for _, c := range []string{"ip link set x4 master br9", "ip link set x4 protodown on protodown_reason 3 on",
		"ip link property add dev x4 altname other", "ip link set x6 type vxlan remote 2001:db8::9",
		"ip addr add 10.9.9.9 peer 10.9.9.10/32 dev x4 metric 7 valid_lft 1000 preferred_lft 1000",
		"ip addr add fc00:9::9/64 dev br0 nodad proto 7",
		"ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:42 dev x4 protocol 7 router",
		"bridge fdb append 02:00:00:00:00:09 dev x6 dst 2001:db8::9 port 4789 vni 7 via u0 self",
		"ip route replace 10.244.2.0/24 via 10.244.2.0 dev x4 onlink proto 116 realm 7 mtu lock 900 initcwnd 3 congctl reno",
		"ip -6 route replace fc00:2::/64 via fc00:2:: dev x6 onlink proto 116 expires 1000 pref high",
		"ip route add 10.244.9.0/24 proto 116 nexthop dev x4 nexthop dev x6", "ip nexthop add id 5 dev x4",
		"ip route add 10.244.8.0/24 nhid 5 proto 116"} {
		if err := command(c); err != nil {
			t.Logf("not here: %v", err)
		}
	}
	kinds := map[int]string{0: ""} // a route without a device
	for key := range want {
		if key.Kind != netstate.KindLink {
			continue
		}
		d, err := k.device(key.Name)
		if err != nil {
			t.Fatal(err)
		}
		kinds[d.Index()] = d.Kind()
	}
	seen := map[string]int{}
	for _, r := range reports() {
		body := &nl.RtMsg{RtMsg: unix.RtMsg{Family: r.family}} // longer than the others' headers, but for links
		err := k.list("everything", r.request, body, func(m []byte) error {
			kind, ours := kinds[r.index(m)]
			switch r.object {
			case "route":
				ours = ours && m[5] == netstate.Protocol
			case "fdb":
				ours = kind == "vxlan" && m[10]&unix.NTF_SELF != 0
			}
			if ours {
				seen[r.object]++
				checkRows(t, r, kind, m)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, object := range []string{"link", "addr", "neigh", "fdb", "route"} {
		if seen[object] < 4 {
			t.Errorf("%d messages about a %s seen, there are more", seen[object], object)
		}
	}
}

func checkRows(t *testing.T, r report, kind string, m []byte) {
	t.Helper()
	tables := attributes.Of(r.object, kind)
	if r.object == "route" {
		tables = attributes.Of(r.object, "ip6tnl") // the device of routes that say what is around packets
	}
	for i, flags := uint16(0), r.flags(m); i < 32; i++ {
		if _, ok := attributes.Find(tables, attributes.Bits, nil, i); !ok && flags>>i&1 != 0 {
			t.Errorf("%s %s has the flag number %d, which is in no table", kind, r.object, i)
		}
	}
	checkNested(t, r.object+" "+kind, tables, m[r.header:], nil)
}

func checkNested(t *testing.T, what string, tables []attributes.Table, data []byte, path []uint16) {
	t.Helper()
	for id, value := range rtnl.Attributes(data) {
		within := append(slices.Clone(path), id)
		if attributes.Nests(tables, within) {
			checkNested(t, what, tables, value, within)
			continue
		}
		if _, ok := attributes.Find(tables, attributes.Attributes, path, id); !ok {
			t.Errorf("%s has the attribute %v (%x), which is in no table", what, within, value)
		}
	}
}

// TestPinnedAttributes alters each pinned attribute that no field models: a plan names it, and it is put back without
// making its device again.
func TestPinnedAttributes(t *testing.T) {
	k := fresh(t).Kernel.(*Kernel)
	want := everyKind(t, k)
	altered := map[string]int{}
	for _, table := range attributes.All() {
		for _, a := range table.Rows {
			if !slices.ContainsFunc(reports(), func(r report) bool { return r.object == table.Object }) {
				break // another package's
			}
			if a.Fate != attributes.Pinned || a.Field != "" {
				continue
			}
			name := table.Object + " " + table.Of + " " + a.Word
			commands := alterations[name]
			if pattern := numeric[table.Object+" "+table.Of]; commands == "" && unalterable[name] == "" && pattern != "" {
				commands = strings.NewReplacer("WORD", a.Word, "VALUE", fmt.Sprint(otherThan(a.Value))).Replace(pattern)
			}
			switch {
			case commands == "" && unalterable[name] == "":
				t.Errorf("%s: nothing here alters it", name)
			case commands != "" && unalterable[name] != "":
				t.Errorf("%s: it is altered, and unalterable", name)
			case commands != "" && checkPutBack(t, k, want, a.Word, commands):
				altered[table.Object+" "+table.Of]++
			}
		}
	}
	t.Logf("altered: %v", altered)
	for object, least := range map[string]int{"link vxlan": 9, "link bridge": 25, "link tun": 2, "link ": 4, "addr ": 6,
		"neigh ": 3, "fdb vxlan": 6, "route ": 15} {
		if altered[object] < least {
			t.Errorf("%s: %d attributes were altered, want at least %d", object, altered[object], least)
		}
	}
}

// otherThan returns a number that the kernel takes in the place of another.
func otherThan(value uint64) uint64 {
	switch value {
	case 0:
		return 1
	case 1:
		return 0
	}
	return value - 1
}

// checkPutBack runs commands, each of which the kernel may refuse, and reports whether one altered something.
func checkPutBack(t *testing.T, k *Kernel, want netstate.State, word, commands string) bool {
	t.Helper()
	before := indices(t, k, want)
	done := false
	for _, c := range strings.Split(commands, "; ") {
		if err := command(c); err != nil {
			t.Logf("refused: %v", err)
			continue
		}
		done = true
	}
	if !done {
		return false
	}
	have, err := k.Observe(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	plan := netstate.Diff(want, have)
	switch {
	case len(plan) == 0:
		t.Logf("%s: nothing changed", commands)
		return false
	case !strings.Contains(plan.String(), word) && word != "nud" && word != "managed":
		t.Errorf("%s: the plan does not name %q:\n%s", commands, word, plan)
	}
	settle(t, k, want)
	if after := indices(t, k, want); !slices.Equal(before, after) {
		t.Errorf("%s: a device was made again: the indices were %v and are %v", commands, before, after)
	}
	return true
}

func indices(t *testing.T, k *Kernel, want netstate.State) (all []int) {
	t.Helper()
	for _, o := range want.Sorted() {
		if o.Key().Kind == netstate.KindLink {
			all = append(all, index(o.Key().Name))
		}
	}
	return all
}

// TestPutBackFixed: what the kernel does not change on a VXLAN device is put back by making it again.
func TestPutBackFixed(t *testing.T) {
	k := fresh(t).Kernel.(*Kernel)
	want := everyKind(t, k)
	before := index("x4")
	for _, c := range []string{"ip link del x4",
		"ip link add x4 type vxlan id 1 local 192.0.2.1 dev u0 dstport 8472 nolearning " +
			"proxy noudpcsum maxaddress 7 srcport 1000 2000"} {
		if err := command(c); err != nil {
			t.Fatal(err)
		}
	}
	made := index("x4")
	have, err := k.Observe(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"proxy 1", "udpcsum 0", "maxaddress 7", "srcport 0x3e807d0"} {
		if plan := netstate.Diff(want, have).String(); !strings.Contains(plan, word) {
			t.Errorf("the plan does not name %q:\n%s", word, plan)
		}
	}
	settle(t, k, want)
	if after := index("x4"); after == made || after == before {
		t.Errorf("the device's index was %d, then %d, and is %d", before, made, after)
	}
}

// TestStrayNeighbour: on a device without hardware addresses one entry stands for all IPv4 peers. In another state than
// the kernel's it keeps the packets of all of them.
func TestStrayNeighbour(t *testing.T) {
	k := fresh(t).Kernel.(*Kernel)
	want := everyKind(t, k)
	for _, state := range []string{"failed", "stale", "permanent"} {
		testwait.Nil(t, state+" is found", func() error { // a packet of the kernel's own may put it back before it is
			if err := command("ip neigh replace 0.0.0.0 dev tun0 nud " + state); err != nil {
				return err
			}
			have, err := k.Observe(t.Context(), want)
			if err != nil {
				return err
			}
			if plan := netstate.Diff(want, have); len(plan) != 1 || plan[0].Key().Kind != netstate.KindNeigh {
				return fmt.Errorf("the plan is %q", plan)
			}
			return nil
		})
		settle(t, k, want)
	}
}
