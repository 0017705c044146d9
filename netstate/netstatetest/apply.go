package netstatetest

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
)

func applies() []testCase {
	cases := []testCase{
		{"nine of ten routes", func(h *host) { h.partial(v4, netip.MustParseAddr("203.0.113.9")) }},
		{"nine of ten routes v6", func(h *host) { h.partial(v6, netip.MustParseAddr("2001:db8:9::9")) }},
		{"what is absent can be deleted", deleteAbsent},
		{"no such device", noDevice},
		{"device is down", func(h *host) {
			l := v4.link()
			l.Up = false
			h.refuses(merge(v4.overlay(), netstate.NewState(l)), "network is down", slots(routesOfV4)...)
		}},
		{"second VXLAN of one VNI and port", secondVXLAN},
		{"both families have one VNI", func(h *host) { h.underlay(); h.apply(merge(v4.vtep(), v6.vtep())) }},
		{"underlay missing", func(h *host) {
			l := v4.link()
			l.Dev = "nodev"
			h.refuses(netstate.NewState(l), "nodev: no such device", "+ link flannel.1")
		}},
		{"mtu beyond the underlay's", func(h *host) {
			l := v4.link()
			l.MTU = 1500
			h.underlay()
			_ = h.Kernel.Apply(context.Background(), h.diff(netstate.NewState(l))) // the kernel takes it, and clamps
			h.plan(netstate.NewState(l), "~ "+strings.Replace(link4, "1450", "1500", 1)+" (was "+link4+")")
			h.refuses(netstate.NewState(l), "invalid argument", "~ link flannel.1")
		}},
		{"cancelled", func(h *host) {
			h.underlay()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := h.Kernel.Apply(ctx, h.diff(v4.overlay())); err == nil || h.Index("flannel.1") != 0 {
				h.Fatalf("apply with a cancelled context: %v, flannel.1 has index %d", err, h.Index("flannel.1"))
			}
		}},
		{"a gateway moves between devices v6", moves},
		{"checksum offload", offload},
		{"a bridge has the VTEP's name", func(h *host) { h.otherType(v4.overlay(), "ip link add flannel.1 type bridge") }},
		{"a veth has the VTEP's name", func(h *host) {
			h.otherType(v6.overlay(), "ip link add flannel-v6.1 type veth peer name x0")
		}},
		{"a VXLAN has the bridge's name", func(h *host) {
			h.otherType(bridge(), "ip link add cni0 type vxlan id 7 dev u0 local 192.0.2.1 dstport 8472")
		}},
		{"the bridge is a port", func(h *host) {
			h.otherType(bridge(), "ip link add vethx type veth peer name cni0", "ip link add br9 type bridge",
				"ip link set cni0 master br9")
		}},
	}
	for name, change := range map[string]func(*netstate.VXLAN){
		"vni":      func(l *netstate.VXLAN) { l.VNI = 2 },
		"port":     func(l *netstate.VXLAN) { l.Port = 4789 },
		"dev":      func(l *netstate.VXLAN) { l.Dev, l.Local = "u1", v4.across(1) },
		"local":    func(l *netstate.VXLAN) { l.Local = v4.underlay(50) },
		"gbp":      func(l *netstate.VXLAN) { l.GBP = true },
		"learning": func(l *netstate.VXLAN) { l.Learning = true },
	} {
		cases = append(cases, testCase{"recreate for another " + name, func(h *host) { h.recreates(change, true) }})
	}
	for name, change := range map[string]func(*netstate.VXLAN){
		"mtu":  func(l *netstate.VXLAN) { l.MTU = 1300 },
		"mac":  func(l *netstate.VXLAN) { l.MAC[5] = 0x77 },
		"down": func(l *netstate.VXLAN) { l.Up = false },
	} {
		cases = append(cases, testCase{"keep for another " + name, func(h *host) { h.recreates(change, false) }})
	}
	return cases
}

// partial applies ten routes of which one has a gateway that is nowhere.
func (h *host) partial(s stack, nowhere netip.Addr) {
	h.underlay()
	want := netstate.State{}
	for n := 2; n <= 11; n++ {
		want.Merge(s.direct(n, s.underlay(n), "u0"))
	}
	bad := s.route(5, nowhere, "u0", false)
	want.Add(bad)
	err := h.Kernel.Apply(context.Background(), h.diff(want))
	if err == nil || !strings.Contains(err.Error(), bad.String()) ||
		!strings.Contains(err.Error(), "not on the same L2 segment as u0") {
		h.Fatalf("the error does not name the route, or what is wrong with it: %v", err)
	}
	if strings.Contains(err.Error(), s.prefix(6).String()) {
		h.Fatalf("the error names a route that is not wrong: %v", err)
	}
	h.slots(want, "+ route "+bad.Dst.String())
}

// refuses applies want on a host with underlays, and expects an error and what is left to do.
func (h *host) refuses(want netstate.State, sentence string, left ...string) {
	h.Helper()
	if h.Index("u0") == 0 {
		h.underlay()
	}
	err := h.Kernel.Apply(context.Background(), h.diff(want))
	if err == nil || !strings.Contains(err.Error(), sentence) {
		h.Fatalf("got the error %v, want one with %q", err, sentence)
	}
	h.slots(want, left...)
}

func deleteAbsent(h *host) {
	h.underlay()
	plan := netstate.Diff(netstate.State{}, node())
	for range 2 {
		if err := h.Kernel.Apply(context.Background(), plan); err != nil {
			h.Fatalf("delete what was never there: %v", err)
		}
	}
	h.apply(node()) // with the devices there, and nothing on them
	for range 2 {
		var entries netstate.Plan
		for _, c := range plan {
			if c.Key().Kind != netstate.KindLink {
				entries = append(entries, c)
			}
		}
		if err := h.Kernel.Apply(context.Background(), entries); err != nil {
			h.Fatalf("delete: %v", err)
		}
	}
}

func noDevice(h *host) {
	want := netstate.State{}
	for k, o := range v4.overlay() {
		if k.Kind != netstate.KindLink && k.Kind != netstate.KindSysctl {
			want.Add(o)
		}
	}
	h.underlay()
	err := h.Kernel.Apply(context.Background(), h.diff(want))
	if err == nil || strings.Count(err.Error(), "flannel.1: no such device") != len(want) {
		h.Fatalf("want one error for each of %d objects, got %v", len(want), err)
	}
}

func secondVXLAN(h *host) {
	h.underlay()
	h.run("ip link add other.1 type vxlan id 1 dev u0 local 192.0.2.1 dstport 8472 nolearning")
	h.refuses(netstate.NewState(v4.link()), "another VXLAN device on this host has VNI 1 and UDP port 8472",
		"+ link flannel.1")
	h.run("ip link del other.1")
	h.apply(netstate.NewState(v4.link()))
}

// offload: who does not say anything about it leaves it alone, and a device that is made again has it on.
func offload(h *host) {
	h.underlay()
	off := netstate.Offload{Dev: "flannel.1"}
	on := netstate.Offload{Dev: "flannel.1", On: true}
	with := func(o netstate.Offload) netstate.State { return merge(v4.overlay(), netstate.NewState(o)) }
	h.refuses(netstate.NewState(off), "no such device", "+ offload flannel.1")
	h.apply(v4.overlay())
	h.plan(with(on))
	h.apply(with(off))
	interfaces, err := h.Machine.Interfaces(context.Background())
	for _, i := range interfaces {
		if i.ChecksumsOff != (i.Name == "flannel.1") {
			h.Errorf("%s: checksums off: %t", i.Name, i.ChecksumsOff)
		}
	}
	if err != nil || len(interfaces) == 0 {
		h.Fatalf("no interfaces: %v", err)
	}
	h.plan(v4.overlay())
	h.plan(with(on), "~ "+on.String()+" (was "+off.String()+")")
	h.run("ip link del flannel.1")
	h.slots(with(off), append(slots("+ link flannel.1; + sysctl net/ipv4/conf/flannel.1/rp_filter; + offload flannel.1"),
		slots(allOfV4)...)...)
	h.apply(with(off))
	h.apply(with(on))
}

// moves goes from vxlan to direct routes and back: the kernel refuses (EINVAL) to replace an IPv6 route by one
// with an onlink gateway that resolves through another device.
func moves(h *host) {
	h.underlay()
	for range 2 {
		h.settle(merge(v6.overlay(), v4.overlay()))
		h.settle(merge(v6.vtep(), v6.direct(2, v6.underlay(2), "u0"), v4.direct(2, v4.underlay(2), "u0")))
		h.settle(merge(v6.vtep(), v6.direct(2, v6.across(2), "u1"), v4.direct(2, v4.across(2), "u1")))
		h.settle(v6.blackhole())
	}
}

func (h *host) otherType(want netstate.State, commands ...string) {
	h.underlay()
	h.run(commands...)
	h.settle(want)
}

// recreates changes the device of an overlay and expects its index to change, or not.
func (h *host) recreates(change func(*netstate.VXLAN), anew bool) {
	h.underlay()
	h.run("ip addr add 192.0.2.50/24 dev u0")
	want, link, before := v4.overlay(), v4.link(), 0
	h.apply(want)
	before = h.Index(link.Name)
	change(&link)
	if !link.Up {
		want = v4.vtep()
	}
	want.Add(link)
	h.settle(want)
	if after := h.Index(link.Name); (after != before) != anew {
		h.Errorf("the index was %d and is %d", before, after)
	}
}

// quiet is how long no hint must come, prompt how soon one has to, and polled how soon where the kernel announces
// nothing.
const quiet, prompt, polled = 50 * time.Millisecond, 300 * time.Millisecond, 10 * time.Second

func watches() []testCase {
	return []testCase{
		{"ends with its context", func(h *host) {
			ctx, cancel := context.WithCancel(context.Background())
			hints := h.watch(ctx)
			cancel()
			timeout := time.After(5 * time.Second)
			for ok := true; ok; {
				select {
				case _, ok = <-hints:
				case <-timeout:
					h.Fatal("the channel is still open")
				}
			}
		}},
		{"pods come and go", func(h *host) {
			h.underlay()
			want := node()
			for key, o := range want {
				// The kernel says up to two seconds later that nobody else has an IPv6 address: that is news.
				if a, ok := o.(netstate.Addr); ok && !a.Prefix.Addr().Is4() && !a.NoDAD {
					delete(want, key)
				}
			}
			h.apply(want)
			h.run(pod("a")...) // the first port gives the bridge a carrier: that is news
			hints := h.watch(h.Context())
			h.silent(hints)
			for _, name := range []string{"b", "c", "d"} {
				h.run(pod(name)...)
				h.run("ip link del veth" + name)
			}
			select {
			case <-hints:
				h.Fatal("a hint about pods")
			case <-time.After(2 * quiet):
			}
		}},
		{"an interface that could be an underlay", func(h *host) {
			h.underlay()
			h.apply(node())
			for _, c := range []string{"ip addr add 203.0.113.1/24 dev u1", "ip addr del 198.51.100.1/24 dev u1",
				"ip link set u1 mtu 1400",
				"ip link set u1 down", "ip link set u1 up", "ip route add default via 192.0.2.254 dev u0", "ip route del default",
				"ip link add u2 type bridge", "ip link del u2"} {
				h.hints(c)
			}
		}},
	}
}

func pod(name string) []string {
	return []string{"ip link add veth" + name + " type veth peer name vethp" + name,
		"ip link set veth" + name + " master cni0",
		"ip link set vethp" + name + " up", "ip link set veth" + name + " up",
		"ip addr add fe80::9/64 dev veth" + name + " nodad"} // the kernel itself gives one a second later
}

func (h *host) watch(ctx context.Context) <-chan struct{} {
	h.Helper()
	hints, err := h.Kernel.Watch(ctx)
	if err != nil {
		h.Fatalf("watch: %v", err)
	}
	return hints
}

// silent waits until the hints of earlier changes are over and fails if there is no end.
func (h *host) silent(hints <-chan struct{}) {
	h.Helper()
	for range 40 { // on a busy machine they come late
		select {
		case _, ok := <-hints:
			if !ok {
				h.Fatal("the channel was closed")
			}
		case <-time.After(quiet):
			return
		}
	}
	h.Fatal("hints without end")
}

// hints runs commands and expects a hint soon.
func (h *host) hints(commands ...string) {
	h.Helper()
	h.hintsWithin(prompt, commands...)
}

func (h *host) hintsWithin(limit time.Duration, commands ...string) {
	h.Helper()
	ctx, cancel := context.WithCancel(h.Context())
	defer cancel()
	hints := h.watch(ctx)
	h.silent(hints)
	h.run(commands...)
	select {
	case _, ok := <-hints:
		if !ok {
			h.Fatalf("%q: the channel was closed", commands)
		}
	case <-time.After(limit):
		h.Fatalf("%q: no hint within %s", commands, limit)
	}
}
