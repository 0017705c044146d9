package kernel

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// TestConcernsLink: a message about a link that is not known is news if the link is wanted or marked, or is no veth.
func TestConcernsLink(t *testing.T) {
	k := &Kernel{}
	k.filter.Store(newFilter(netstate.NewState(netstate.Bridge{Name: "cni0"})))
	message := func(family byte, attrs ...[]byte) []byte {
		return slices.Concat(append([]byte{family}, make([]byte, unix.SizeofIfInfomsg-1)...), slices.Concat(attrs...))
	}
	name := func(s string) []byte { return attr(unix.IFLA_IFNAME, append([]byte(s), 0)...) }
	veth := attr(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, []byte("veth")...)...)
	mark := attr(unix.IFLA_IFALIAS, append([]byte(netstate.Mark), 0)...)
	for what, test := range map[string]struct {
		message []byte
		want    bool
	}{
		"a pod's":              {message(0, name("veth1"), veth), false},
		"a veth of a machine":  {message(0, name("eth0"), veth), true},
		"a veth by our name":   {message(0, name("cni0"), veth), true},
		"a marked veth":        {message(0, name("veth1"), veth, mark), true},
		"no veth":              {message(0, name("veth1")), true},
		"without attributes":   {message(0), true},
		"cut short":            {message(0)[:unix.SizeofIfInfomsg-1], false},
		"about a bridge port":  {message(unix.AF_BRIDGE, name("cni0")), false},
		"of a bridge, a veth":  {message(unix.AF_BRIDGE, name("eth0"), veth), false},
		"a veth that is wide":  {message(0, name("vet"), veth), true},
		"marked, of no family": {message(0, mark), true},
	} {
		if got := k.concerns(unix.RTM_NEWLINK, test.message); got != test.want {
			t.Errorf("%s: news %t, want %t", what, got, test.want)
		}
	}
	if k.concerns(unix.RTM_NEWADDR, make([]byte, unix.SizeofIfAddrmsg)) {
		t.Error("a message about no address is news")
	}
	if !k.concernsNetconf(make([]byte, sizeofNetconf)) {
		t.Error("a message about the sysctls of no interface is no news")
	}
}

// TestExplainGateway: only a route through a gateway of the underlay can need another backend.
func TestExplainGateway(t *testing.T) {
	gateway := netstate.Route{Via: netip.MustParseAddr("192.0.2.9"), Dev: "eth0"}
	onlink, tunnel := gateway, gateway
	onlink.Onlink, tunnel.Outer = true, netip.MustParseAddr("2001:db8::1")
	for _, test := range []struct {
		route netstate.Route
		err   error
		said  bool
	}{
		{gateway, unix.ENETUNREACH, true}, {gateway, unix.EHOSTUNREACH, true}, {gateway, unix.EINVAL, true},
		{gateway, unix.EPERM, false}, {onlink, unix.EINVAL, false}, {tunnel, unix.EINVAL, false},
		{netstate.Route{Dev: "eth0"}, unix.EINVAL, false},
	} {
		err := explainGateway(test.route, test.err)
		if !errors.Is(err, test.err) || strings.Contains(err.Error(), "use the vxlan backend") != test.said {
			t.Errorf("%s, %v: %v", test.route, test.err, err)
		}
	}
}

// TestExplainLink: the error of a device that cannot be made says why, and stays what it is.
func TestExplainLink(t *testing.T) {
	for _, test := range []struct {
		device netstate.Object
		err    error
		said   string
	}{
		{netstate.VXLAN{VNI: 7, Port: 8472}, unix.EEXIST, "VNI 7 and UDP port 8472"}, {netstate.VXLAN{}, unix.EPERM, ""},
		{netstate.Tun{Name: "t0"}, unix.EPERM, "make the TUN device t0 by /dev/net/tun"},
		{netstate.WireGuard{}, unix.EOPNOTSUPP, "load the module wireguard"}, {netstate.WireGuard{}, unix.EEXIST, ""},
		{netstate.Tunnel{}, unix.EOPNOTSUPP, "load the module ipip"}, {netstate.Tunnel{}, unix.EPERM, ""},
		{netstate.Tunnel{External: true}, unix.EOPNOTSUPP, "load the module ip6_tunnel"},
		{netstate.Tunnel{External: true}, unix.EEXIST, "another ip6_tunnel device"},
		{netstate.Bridge{}, unix.EEXIST, ""},
	} {
		err := explainLink(test.device, test.err)
		if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.said) || test.said == "" && err != test.err {
			t.Errorf("%T, %v: %v, want %q in it", test.device, test.err, err, test.said)
		}
		if err := explainLink(test.device, nil); err != nil {
			t.Errorf("%T was made: %v", test.device, err)
		}
	}
}

// TestRequests: what a request says is read back as the route that was asked for, also where this kernel may lack the
// tunnel that it needs.
func TestRequests(t *testing.T) {
	h := fresh(t)
	a, err := h.Kernel.(*Kernel).newApplier()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []netstate.Route{
		{Dst: netip.MustParsePrefix("fc00:0:0:2::/64"), Via: netip.MustParseAddr("2001:db8::2"), Dev: "lo", Metric: 1024,
			Outer: netip.MustParseAddr("2001:db8::1"), Protocol: netstate.Protocol},
		{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("192.0.2.2"), Dev: "lo", Onlink: true,
			Src: netip.MustParseAddr("10.244.1.0"), Protocol: netstate.Protocol},
	} {
		r, err := a.request(netstate.Change{Want: want})
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseRoute(r.Serialize()[unix.SizeofNlMsghdr:])
		if o := decodeRoute(got, map[int]string{1: "lo"}); err != nil || o != want {
			t.Errorf("asked for %s, want %s, %v", o, want, err)
		}
		r, err = a.request(netstate.Change{Was: want})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseRoute(r.Serialize()[unix.SizeofNlMsghdr:]); err != nil || got.encap != nil ||
			got.gw.IsValid() == want.Outer.IsValid() {
			t.Errorf("deletes %+v of %s, %v", got, want, err)
		}
	}
	if _, err := a.request(netstate.Change{Want: netstate.Sysctl{Name: "a"}}); err == nil {
		t.Error("a request for a sysctl")
	}
}

// TestDecodeRare: what is said of routes and entries that are seldom seen.
func TestDecodeRare(t *testing.T) {
	six := slices.Concat(head(unix.AF_INET6, 64), attr(unix.RTA_DST, ip("fc00:2::")...), attr(unix.RTA_OIF, number(7)...),
		attr(unix.RTA_ENCAP_TYPE, nl.LWTUNNEL_ENCAP_IP6, 0))
	for name, message := range map[string][]byte{
		"route fc00:2::/64 via 2001:db8::2 dev f metric 0 encap without addresses": append(slices.Clone(six),
			attr(unix.RTA_ENCAP, attr(nl.LWTUNNEL_IP6_DST, ip("2001:db8::2")...)...)...),
		"route 10.2.0.0/16 via 192.0.2.2 type 8": slices.Concat(set(set(head(unix.AF_INET, 16), 7, unix.RTN_PROHIBIT), 6,
			unix.RT_SCOPE_LINK), attr(unix.RTA_DST, ip("10.2.0.0")...), attr(unix.RTA_GATEWAY, ip("192.0.2.2")...)),
	} {
		r, err := parseRoute(message)
		if got := decodeRoute(r, map[int]string{7: "f"}).String(); err != nil || got != name {
			t.Errorf("got %q, %v, want %q", got, err, name)
		}
	}
	var via entry
	via.Family, via.Index, via.MAC, via.State, via.Flags = unix.AF_BRIDGE, 4, []byte{2, 0, 0, 0, 0, 0}, unix.NUD_PERMANENT, unix.NTF_SELF
	m := slices.Concat([]byte{unix.AF_BRIDGE, 0, 0, 0, 4, 0, 0, 0, unix.NUD_PERMANENT, 0, unix.NTF_SELF, 0},
		attr(unix.NDA_LLADDR, 2, 0, 0, 0, 0, 0), attr(unix.NDA_VNI, number(9)...), attr(unix.NDA_IFINDEX, number(7)...),
		attr(unix.NDA_PORT, 0x21, 0x18))
	via.VNI, via.Via, via.Port = 9, 7, 0x2118
	if got, err := parseEntry(m); err != nil || !reflect.DeepEqual(got, via) {
		t.Errorf("got %+v, %v, want %+v", got, err, via)
	}
	for want, change := range map[string]func(*entry){"port 8472 vni 9 via u0": func(*entry) {},
		"vni 9":     func(e *entry) { e.Port, e.Via = 0, 0 },
		"port 8472": func(e *entry) { e.VNI, e.Via = 0, 0 },
		"via u0":    func(e *entry) { e.Port, e.VNI = 0, 0 },
		"":          func(e *entry) { e.Port, e.VNI, e.Via = 0, 0, 0 },
	} {
		e := via
		change(&e)
		if got, ours := decodeFDB("f", e, map[int]string{7: "u0"}); got.Extra != want || !ours {
			t.Errorf("got %q, want %q", got.Extra, want)
		}
	}
}
