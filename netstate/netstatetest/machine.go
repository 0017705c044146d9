package netstatetest

import (
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/netstate"
)

func machines() []testCase {
	return []testCase{
		{"interfaces", interfaces},
		{"default routes", defaults},
		{"routes to", routesTo},
	}
}

// facts are an interface's, without what differs from machine to machine.
func (h *host) facts(name string) string {
	h.Helper()
	all, err := h.Machine.Interfaces(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	for _, i := range all {
		if i.Name == name {
			return fmt.Sprintf("mtu %d up %t owned %t ra %t addrs %v onlink %v default %v", i.MTU, i.Up, i.Owned, i.AcceptRA,
				i.Addrs, i.OnLink, i.Default)
		}
	}
	return "none"
}

func (h *host) isFact(name, want string) {
	h.Helper()
	if got := h.facts(name); got != want {
		h.Errorf("%s:\n got %s\nwant %s", name, got, want)
	}
}

func interfaces(h *host) {
	h.underlay()
	h.isFact("u0", "mtu 1500 up true owned false ra true addrs [192.0.2.1/24 2001:db8::1/64] "+
		"onlink [192.0.2.0/24 2001:db8::/64] default []")
	h.run("ip link set u0 mtu 9000", "ip route add 203.0.113.0/24 dev u0 scope link",
		"ip route add 203.0.114.0/24 via 192.0.2.9 dev u0",
		"sysctl -q -w net/ipv6/conf/u0/accept_ra=0")
	h.isFact("u0", "mtu 9000 up true owned false ra false addrs [192.0.2.1/24 2001:db8::1/64] "+
		"onlink [192.0.2.0/24 2001:db8::/64 203.0.113.0/24] default []")
	h.apply(merge(bridge(), v4.vtep()))
	h.run("ip link set u1 master cni0")
	for name, owned := range map[string]bool{"u0": false, "u1": true, "cni0": true, "flannel.1": true} {
		all, err := h.Machine.Interfaces(h.Context())
		if err != nil {
			h.Fatal(err)
		}
		for _, i := range all {
			if i.Name == name && i.Owned != owned {
				h.Errorf("%s owned: %t, want %t", name, i.Owned, owned)
			}
		}
	}
	h.run("ip link add other type bridge", "ip link set u1 master other")
	h.isFact("u1", "mtu 1500 up true owned false ra true addrs [198.51.100.1/24 2001:db8:1::1/64] "+
		"onlink [198.51.100.0/24 2001:db8:1::/64] default []")
	h.run("ip link set u0 down")
	h.isFact("u0", "mtu 9000 up false owned false ra false addrs [192.0.2.1/24] onlink [] default []")
	h.mac("flannel.1", v4.mac(1))
}

func (h *host) mac(name string, want netstate.MAC) {
	h.Helper()
	all, err := h.Machine.Interfaces(h.Context())
	for _, i := range all {
		if i.Name == name && i.MAC == want {
			return
		}
	}
	h.Errorf("%s has not the MAC %s: %v %v", name, want, all, err)
}

// defaults: each family has its own, the least metric decides, and of one metric the first route.
func defaults(h *host) {
	h.underlay()
	h.run("ip route add default via 192.0.2.254 dev u0 metric 100",
		"ip route add default via 2001:db8:1::254 dev u1 metric 100")
	h.isFact("u0", "mtu 1500 up true owned false ra true addrs [192.0.2.1/24 2001:db8::1/64] "+
		"onlink [192.0.2.0/24 2001:db8::/64] default [IPv4]")
	h.run("ip route add default tos 0x10 via 198.51.100.254 dev u1 metric 300") // the kernel lists it first
	h.isFact("u0", "mtu 1500 up true owned false ra true addrs [192.0.2.1/24 2001:db8::1/64] "+
		"onlink [192.0.2.0/24 2001:db8::/64] default [IPv4]")
	h.run("ip route add default via 198.51.100.254 dev u1 metric 50",
		"ip route append default via 192.0.2.254 dev u0 metric 50")
	h.isFact("u0", "mtu 1500 up true owned false ra true addrs [192.0.2.1/24 2001:db8::1/64] "+
		"onlink [192.0.2.0/24 2001:db8::/64] default []")
	h.isFact("u1", "mtu 1500 up true owned false ra true addrs [198.51.100.1/24 2001:db8:1::1/64] "+
		"onlink [198.51.100.0/24 2001:db8:1::/64] default [IPv4 IPv6]")
}

func routesTo(h *host) {
	h.underlay()
	h.routeTo("203.0.113.9", "")
	h.run("ip route add default via 192.0.2.254 dev u0", "ip route add 203.0.113.0/24 via 198.51.100.9 dev u1")
	for dst, dev := range map[string]string{"192.0.2.7": "u0 192.0.2.1", "198.51.100.7": "u1 198.51.100.1",
		"203.0.113.9": "u1 198.51.100.1",
		"203.0.114.9": "u0 192.0.2.1", "2001:db8::7": "u0 2001:db8::1", "2001:db8:1::7": "u1 2001:db8:1::1",
		"2001:db8:2::7": ""} {
		h.routeTo(dst, dev)
	}
}

// routeTo expects a device and the address to send from, or an error that names the destination.
func (h *host) routeTo(dst, want string) {
	h.Helper()
	dev, src, err := h.Machine.RouteTo(netip.MustParseAddr(dst))
	got := dev
	if src.IsValid() {
		got += " " + src.String()
	}
	if got != want || (err == nil) != (want != "") {
		h.Errorf("route to %s: %q, %v, want %q", dst, got, err, want)
	}
}
