package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// check says what of the pod's network is not as ADD left it. What is there beyond that is another plugin's.
func check(_ context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	prev, err := c.previous()
	if err != nil {
		return err
	}
	if prev == nil {
		return failure(types.ErrInvalidNetworkConfig, "prevResult is missing: want the result of the pod's ADD")
	}
	p, err := openPod(args.Netns)
	if errors.Is(err, errNoPod) {
		return failure(types.ErrUnknownContainer, "CNI_NETNS %s is not there or not a network namespace: want the pod's", args.Netns)
	}
	if err != nil {
		return err
	}
	defer p.close()
	o := owner{args.ContainerID, args.IfName}
	want, err := c.wanted(prev, args)
	if err != nil {
		return err
	}
	have, err := observe(p, c, o, want)
	if err != nil {
		return fmt.Errorf("look at the pod: %w", err)
	}
	if plan := netstate.Diff(want, have); len(plan) > 0 {
		return failure(types.ErrInternal, "the pod's network is not as ADD left it, delete the pod to get a new one: %s",
			strings.ReplaceAll(strings.TrimSpace(plan.String()), "\n", "; "))
	}
	return nil
}

// podEnd is the pod's interface, as a netstate object.
type podEnd struct {
	Name string
	MAC  string
	MTU  int
	Up   bool
}

// Key implements netstate.Object.
func (l podEnd) Key() netstate.Key { return netstate.Key{Kind: netstate.KindLink, Name: l.Name} }

func (l podEnd) String() string {
	return fmt.Sprintf("link %s address %s mtu %d%s", l.Name, l.MAC, l.MTU, state(l.Up, " up", " down"))
}

// hostEnd is the host's end of the pair, as a netstate object.
type hostEnd struct {
	Name    string
	Master  string
	MTU     int
	Hairpin bool
	Up      bool
}

// Key implements netstate.Object.
func (l hostEnd) Key() netstate.Key { return netstate.Key{Kind: netstate.KindLink, Name: l.Name} }

func (l hostEnd) String() string {
	return fmt.Sprintf("link %s master %s mtu %d%s%s", l.Name, state(l.Master != "", l.Master, "none"), l.MTU,
		state(l.Hairpin, " hairpin on", " hairpin off"), state(l.Up, " up", " down"))
}

// reservation is an address's file in the store, as a netstate object.
type reservation struct{ File, Owner string }

// Key implements netstate.Object; the kind only says that nothing depends on it.
func (r reservation) Key() netstate.Key { return netstate.Key{Kind: netstate.KindChain, Name: r.File} }

func (r reservation) String() string { return "reservation " + r.File + " of " + r.Owner }

func state(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

// wanted is the state that prevResult and the config describe.
func (c *config) wanted(prev *types100.Result, args *skel.CmdArgs) (netstate.State, error) {
	in := slices.IndexFunc(prev.Interfaces, func(i *types100.Interface) bool {
		return i.Name == args.IfName && i.Sandbox != ""
	})
	if in < 0 {
		return nil, failure(types.ErrInvalidNetworkConfig, "prevResult has no interface %s in a sandbox: want the result of the pod's ADD", args.IfName)
	}
	s := netstate.NewState(podEnd{Name: args.IfName, MAC: prev.Interfaces[in].Mac, MTU: c.wantedMTU(prev.Interfaces[in]), Up: true})
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" && i.Name != c.bridge {
			s.Add(hostEnd{i.Name, c.bridge, c.wantedMTU(i), c.hairpin, true})
		}
	}
	var grants []grant
	for _, ip := range prev.IPs {
		if ip.Interface == nil || *ip.Interface != in {
			continue
		}
		g := grant{prefixOf(&ip.Address), addrOf(ip.Gateway)}
		grants = append(grants, g)
		s.Add(netstate.Addr{Dev: args.IfName, Prefix: g.prefix})
		s.Add(reservation{(&store{dir: c.storeDir()}).path(g.prefix.Addr()), args.ContainerID})
	}
	for _, r := range prev.Routes {
		if o, ok := wantedRoute(r, args.IfName, grants); ok {
			s.Add(o)
		}
	}
	return s, nil
}

// wantedMTU is what ADD's result says, as later plugins may have changed it, or else what ADD would give now; 0
// when neither is known.
func (c *config) wantedMTU(i *types100.Interface) int {
	if i.Mtu != 0 {
		return i.Mtu
	}
	if c.mtu != 0 {
		return c.mtu
	}
	env, _ := subnet.ReadEnv(c.subnetFile)
	return env.MTU
}

// wantedRoute is r if it is one through the pod's interface. A route without a gateway goes through that of its
// family, as the bridge plugin has it.
func wantedRoute(r *types.Route, dev string, grants []grant) (netstate.Route, bool) {
	o := netstate.Route{Dst: prefixOf(&r.Dst), Via: addrOf(r.GW), Dev: dev, Metric: r.Priority, Protocol: netstate.Protocol}
	if !o.Via.IsValid() {
		o.Via = gatewayFor(o.Dst, grants)
	}
	if o.Metric == 0 {
		o.Metric = netstate.DefaultMetric(o.Dst.Addr())
	}
	ours := slices.ContainsFunc(grants, func(g grant) bool { return g.prefix.Masked().Contains(o.Via) })
	return o, ours && (r.Table == nil || *r.Table == unix.RT_TABLE_MAIN)
}

// observe is as much of the kernel's and the store's state as want is about.
func observe(p *pod, c *config, o owner, want netstate.State) (netstate.State, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	have, err := p.observe(o.dev)
	if err != nil {
		return nil, err
	}
	for key, w := range want {
		switch w := w.(type) {
		case hostEnd:
			err = observeHostEnd(host, w, have)
		case reservation:
			content, readErr := os.ReadFile(w.File)
			if readErr == nil && o.owns(content) {
				have.Add(w)
			} else if readErr == nil {
				have.Add(reservation{w.File, parseOwner(content).container})
			}
		case podEnd:
			if h, ok := have[key].(podEnd); ok {
				have.Add(h.unless(w))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	for key := range have {
		if _, ok := want[key]; !ok {
			delete(have, key)
		}
	}
	return have, nil
}

// unless is l without what w does not know.
func (l podEnd) unless(w podEnd) podEnd {
	if w.MAC == "" {
		l.MAC = ""
	}
	if w.MTU == 0 {
		l.MTU = 0
	}
	return l
}

func observeHostEnd(nl *netlink.Handle, want hostEnd, have netstate.State) error {
	link, err := findLink(nl, want.Name)
	if link == nil || err != nil {
		return err
	}
	a := link.Attrs()
	h := hostEnd{Name: a.Name, MTU: a.MTU, Up: a.Flags&unix.IFF_UP != 0}
	if want.MTU == 0 {
		h.MTU = 0
	}
	if a.MasterIndex != 0 {
		master, err := nl.LinkByIndex(a.MasterIndex)
		if err != nil {
			return err
		}
		h.Master = master.Attrs().Name
		port, err := dump(func() (netlink.Protinfo, error) { return nl.LinkGetProtinfo(link) })
		if err != nil {
			return err
		}
		h.Hairpin = port.Hairpin
	}
	have.Add(h)
	return nil
}

// observe is the interface, its addresses and its routes in the pod.
func (p *pod) observe(dev string) (netstate.State, error) {
	s := netstate.State{}
	link, err := p.link(dev)
	if link == nil || err != nil {
		return s, err
	}
	a := link.Attrs()
	s.Add(podEnd{a.Name, a.HardwareAddr.String(), a.MTU, a.Flags&unix.IFF_UP != 0})
	addrs, err := dump(func() ([]netlink.Addr, error) { return p.nl.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		s.Add(netstate.Addr{Dev: dev, Prefix: prefixOf(addr.IPNet), Extra: state(addr.Flags&unix.IFA_F_DADFAILED != 0, "dadfailed", "")})
	}
	routes, err := dump(func() ([]netlink.Route, error) { return p.nl.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		s.Add(podRoute(r, dev))
	}
	return s, nil
}

// podRoute leaves out who wrote the route: flannel's chain did in older pods.
func podRoute(r netlink.Route, dev string) netstate.Route {
	dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if r.Dst != nil {
		dst = prefixOf(r.Dst)
	} else if r.Family == unix.AF_INET6 {
		dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netstate.Route{Dst: dst, Via: addrOf(r.Gw), Dev: dev, Metric: r.Priority, Protocol: netstate.Protocol,
		Onlink: r.Flags&int(netlink.FLAG_ONLINK) != 0, Blackhole: r.Type == unix.RTN_BLACKHOLE}
}

// dump repeats a listing that a change of the kernel's tables interrupted.
func dump[T any](list func() (T, error)) (result T, err error) {
	for range 10 {
		if result, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return result, err
		}
	}
	return result, err
}
