package backend_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

func TestDeviceSysctls(t *testing.T) {
	bridge := netstate.Bridge{Name: "cni0", MTU: 1450}
	for _, test := range []struct {
		link   netstate.Object
		family netstate.Family
		want   string
	}{
		{netstate.VXLAN{Name: "flannel.1", MTU: 1450}, netstate.IPv4, "ipv4/conf/flannel.1/forwarding=1"},
		{netstate.WireGuard{Name: "wg", MTU: 1420}, netstate.IPv6,
			"ipv6/conf/wg/accept_ra=0 ipv6/conf/wg/disable_ipv6=0 ipv6/conf/wg/mtu=1420 ipv6/conf/wg/hop_limit=64"},
		{bridge, netstate.IPv4, "ipv4/conf/cni0/forwarding=1 ipv4/conf/cni0/arp_ignore=0 ipv4/conf/cni0/arp_notify=1 " +
			"ipv4/neigh/cni0/app_solicit=0 ipv4/neigh/cni0/mcast_solicit=3"},
		{bridge, netstate.IPv6, "ipv6/conf/cni0/accept_ra=0 ipv6/conf/cni0/disable_ipv6=0 ipv6/conf/cni0/mtu=1450 " +
			"ipv6/conf/cni0/ndisc_notify=1 ipv6/neigh/cni0/app_solicit=0 ipv6/neigh/cni0/mcast_solicit=3"},
	} {
		var got []string
		for _, s := range backend.DeviceSysctls(test.link, test.family) {
			got = append(got, strings.TrimPrefix(fmt.Sprintf("%s=%s", s.Name, s.Value), "net/"))
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s, %s:\ngot  %s\nwant %s", test.link, test.family, text, test.want)
		}
	}
}
