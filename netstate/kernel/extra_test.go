package kernel

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/netstate"
)

// TestExtra: what a device has beyond its object's fields is said, of every kind, so that it never looks intact.
func TestExtra(t *testing.T) {
	names := map[int]string{7: "br7"}
	attrs := netlink.LinkAttrs{Name: "dev", MTU: 1450, MasterIndex: 7, Alias: netstate.Mark}
	filtering := true
	for name, test := range map[string]struct {
		link netlink.Link
		want string
	}{
		"bridge":    {&netlink.Bridge{LinkAttrs: attrs, VlanFiltering: &filtering}, "master br7 vlan_filtering"},
		"wireguard": {&netlink.Wireguard{LinkAttrs: attrs}, "master br7"},
		"vxlan":     {&netlink.Vxlan{LinkAttrs: attrs}, "master br7"},
		"tun":       {&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN}, "master br7"},
	} {
		var got string
		switch o := decodeLink(test.link, names).(type) {
		case netstate.Bridge:
			got = o.Extra
		case netstate.WireGuard:
			got = o.Extra
		case netstate.VXLAN:
			got = o.Extra
		case netstate.Tun:
			got = o.Extra
		default:
			t.Errorf("%s is read as %T", name, o)
		}
		if len(got) < len(test.want) || got[:len(test.want)] != test.want {
			t.Errorf("%s: the extra is %q, want %q first", name, got, test.want)
		}
	}
}
