// Package xfrm reads and writes the kernel's IPsec policies: what may not pass without ESP. The security associations are
// the key exchange's.
package xfrm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Policies are the kernel's, in the network namespace of the thread that called Open. Several goroutines may use it.
type Policies struct{ nl *netlink.Handle }

// ErrMissing says that the kernel has no IPsec.
var ErrMissing = errors.New("this kernel has no IPsec (xfrm)")

// Open connects to the kernel. Without IPsec in it it returns ErrMissing.
func Open() (*Policies, error) {
	h, err := netlink.NewHandle(unix.NETLINK_XFRM)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, ErrMissing
	case err != nil:
		return nil, fmt.Errorf("open a netlink socket for IPsec: %w", err)
	}
	return &Policies{h}, nil
}

// Close frees the socket.
func (p *Policies) Close() { p.nl.Close() }

// Writes says which kind is IPsec's.
func (p *Policies) Writes(k netstate.Kind) bool { return k == netstate.KindPolicy }

// tries is how often a list that the kernel interrupted is begun again.
const tries = 10

// Observe is the policies that are ours by their priority, and those that stand in a wanted slot.
func (p *Policies) Observe(_ map[string][]string, want netstate.State) (netstate.State, error) {
	var list []netlink.XfrmPolicy
	var err error = netlink.ErrDumpInterrupted
	for try := 0; try < tries && (errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EINTR)); try++ {
		list, err = p.nl.XfrmPolicyList(netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list the IPsec policies: %w", err)
	}
	state := netstate.State{}
	for _, l := range list {
		if l.Dir > netlink.XFRM_DIR_FWD || l.Src == nil || l.Dst == nil {
			continue // a socket's own
		}
		o := decode(l)
		if _, wanted := want[o.Key()]; wanted || o.Priority >= netstate.PolicyPriority && o.Priority < netstate.PolicyPriority+netstate.PolicyPriorities {
			state.Add(o)
		}
	}
	return state, nil
}

// directions are netlink's by ours.
var directions = [...]netlink.Dir{netstate.In: netlink.XFRM_DIR_IN, netstate.Out: netlink.XFRM_DIR_OUT, netstate.Fwd: netlink.XFRM_DIR_FWD}

func decode(l netlink.XfrmPolicy) netstate.Policy {
	o := netstate.Policy{Dir: netstate.Direction(slices.Index(directions[:], l.Dir)), Src: prefixOf(l.Src), Dst: prefixOf(l.Dst), Priority: l.Priority,
		Block: l.Action == netlink.XFRM_POLICY_BLOCK}
	var extra []string
	add := func(on bool, format string, args ...any) {
		if on {
			extra = append(extra, fmt.Sprintf(format, args...))
		}
	}
	add(l.Proto != 0, "proto %d", l.Proto)
	add(l.SrcPort != 0, "sport %d", l.SrcPort)
	add(l.DstPort != 0, "dport %d", l.DstPort)
	add(l.Ifindex != 0, "dev %d", l.Ifindex)
	add(l.Ifid != 0, "if_id %d", l.Ifid)
	add(l.Mark != nil, "mark %v", l.Mark)
	for i, t := range l.Tmpls {
		if i == 0 && t.Proto == netlink.XFRM_PROTO_ESP && t.Mode == netlink.XFRM_MODE_TUNNEL {
			o.From, o.To, o.ReqID, o.Optional = addrOf(t.Src), addrOf(t.Dst), t.Reqid, t.Optional != 0
			add(t.Spi != 0, "spi %#x", t.Spi)
			continue
		}
		add(true, "%s %s to %s %s reqid %d", t.Proto, t.Src, t.Dst, t.Mode, t.Reqid)
	}
	o.Extra = strings.Join(extra, " ")
	return o
}

// Apply carries out one change. Deleting what is not there is success.
func (p *Policies) Apply(c netstate.Change) error {
	if c.Want == nil {
		was, ok := c.Was.(netstate.Policy)
		if !ok {
			return fmt.Errorf("a %s is not an object of IPsec", c.Was.Key().Kind)
		}
		err := p.nl.XfrmPolicyDel(encode(was))
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	want, ok := c.Want.(netstate.Policy)
	if !ok {
		return fmt.Errorf("a %s is not an object of IPsec", c.Want.Key().Kind)
	}
	return p.nl.XfrmPolicyUpdate(encode(want))
}

func encode(o netstate.Policy) *netlink.XfrmPolicy {
	l := &netlink.XfrmPolicy{Src: ipNet(o.Src), Dst: ipNet(o.Dst), Dir: directions[o.Dir], Priority: o.Priority}
	if o.Block {
		l.Action = netlink.XFRM_POLICY_BLOCK
	}
	if o.From.IsValid() {
		t := netlink.XfrmPolicyTmpl{Src: o.From.AsSlice(), Dst: o.To.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Reqid: o.ReqID}
		if o.Optional {
			t.Optional = 1
		}
		l.Tmpls = append(l.Tmpls, t)
	}
	return l
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func prefixOf(n *net.IPNet) netip.Prefix {
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), ones)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
