package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
)

// protocol marks the router's routes that are the cloud's.
const protocol = 142

// follower brings the router's kernel to what the cloud's network says.
type follower struct {
	nl *netlink.Handle

	mu       sync.Mutex
	machines map[string]Machine // by the NIC's ID
}

func newFollower() (*follower, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &follower{nl: nl, machines: map[string]Machine{}}, nil
}

func (f *follower) close() { f.nl.Close() }

// plug notes which port of the router a NIC has.
func (f *follower) plug(nic string, m Machine) error {
	if _, err := f.nl.LinkByName(m.Name); err != nil {
		return fmt.Errorf("machine %s: the router has no port of this name: %w", m.Name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines[nic] = m
	return nil
}

// follow writes the routes and the filter.
func (f *follower) follow(nics []fake.NIC, routes []cloud.Route) error {
	return errors.Join(f.route(nics, routes), f.filter(nics))
}

// route makes the router's routes those of the cloud: to the NIC that is the target, or nowhere.
func (f *follower) route(nics []fake.NIC, routes []cloud.Route) error {
	want := map[string]*netlink.Route{}
	for _, r := range routes {
		i := slices.IndexFunc(nics, func(n fake.NIC) bool { return n.ID == r.Target })
		route := &netlink.Route{Dst: ipNet(r.Dst), Protocol: protocol, Type: unix.RTN_BLACKHOLE}
		if i >= 0 && r.State != cloud.Blackhole {
			for _, a := range nics[i].Addrs {
				if a.Is4() == r.Dst.Addr().Is4() {
					route.Type, route.Gw = unix.RTN_UNICAST, a.AsSlice()
				}
			}
		} else if i < 0 && r.State != cloud.Blackhole {
			continue // a gateway's
		}
		want[r.Dst.String()] = route
	}
	have, err := f.nl.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("read the router's routes: %w", err)
	}
	for _, h := range have {
		if h.Dst != nil && want[h.Dst.String()] == nil {
			if err := f.nl.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete the router's route %s: %w", h.Dst, err)
			}
		}
	}
	for dst, r := range want {
		if err := f.nl.RouteReplace(r); err != nil {
			return fmt.Errorf("write the router's route %s: %w", dst, err)
		}
	}
	return nil
}

// filter drops what a machine sends that is not from its own addresses, and what it gets that is not for them, while its NIC
// does not forward.
func (f *follower) filter(nics []fake.NIC) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "cloud"}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	sends := c.AddChain(&nftables.Chain{Name: "sends", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter})
	gets := c.AddChain(&nftables.Chain{Name: "gets", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter})
	for _, nic := range nics {
		m, ok := f.machines[nic.ID]
		if !ok || nic.Forwards {
			continue
		}
		for _, a := range nic.Addrs {
			c.AddRule(&nftables.Rule{Table: table, Chain: sends, Exprs: others(expr.MetaKeyIIFNAME, m.Name, a, true)})
			c.AddRule(&nftables.Rule{Table: table, Chain: gets, Exprs: others(expr.MetaKeyOIFNAME, m.Name, a, false)})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write the router's filter: %w", err)
	}
	return nil
}

// others match unicast packets of a's family at a port whose source or destination is not a, and drop them. Addresses of
// links and groups pass: fe80::/10, ff00::/8 and 224.0.0.0/4.
func others(port expr.MetaKey, name string, a netip.Addr, source bool) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	proto, offset, mask, local := uint16(unix.ETH_P_IP), uint32(16), []byte{0xf0, 0, 0, 0}, []byte{0xe0, 0, 0, 0}
	if a.Is6() {
		proto, offset = unix.ETH_P_IPV6, 24
		mask, local = append([]byte{0xfe}, make([]byte, 15)...), append([]byte{0xfe}, make([]byte, 15)...) // fe00::/7 has both
	}
	size := uint32(len(a.AsSlice()))
	if source {
		offset -= size
	}
	return []expr.Any{
		&expr.Meta{Key: port, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(proto)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: a.AsSlice()},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: local},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}
