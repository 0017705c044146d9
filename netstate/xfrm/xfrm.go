// Package xfrm reads and writes the kernel's IPsec policies: what may not pass without ESP. The security
// associations belong to the key exchange.
package xfrm

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Policies are the kernel's, in the network namespace of the thread that called Open. Several goroutines may use it.
type Policies struct {
	nl   *netlink.Handle
	read *nl.SocketHandle
}

// ErrMissing is the error of a kernel without IPsec.
var ErrMissing = errors.New("this kernel has no IPsec (xfrm)")

// Open connects to the kernel. Without IPsec it returns ErrMissing.
func Open() (*Policies, error) {
	s, err := nl.Subscribe(unix.NETLINK_XFRM)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, ErrMissing
	case err != nil:
		return nil, fmt.Errorf("open a netlink socket for IPsec: %w", err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_XFRM)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open a netlink socket for IPsec: %w", err)
	}
	return &Policies{h, &nl.SocketHandle{Socket: s}}, nil
}

// Close frees the sockets.
func (p *Policies) Close() {
	p.nl.Close()
	p.read.Close()
}

// Writes reports whether objects of a kind are IPsec's.
func (p *Policies) Writes(k netstate.Kind) bool { return k == netstate.KindPolicy }

// Observe returns the policies that are ours by their priority, and those in a wanted slot.
func (p *Policies) Observe(_ map[string][]string, want netstate.State) (netstate.State, error) {
	messages, err := p.list()
	if err != nil {
		return nil, err
	}
	state := netstate.State{}
	for _, m := range messages {
		o, ok, err := parse(m)
		if err != nil {
			return nil, fmt.Errorf("list the IPsec policies: %w", err)
		}
		_, wanted := want[o.Key()]
		n := o.Priority - netstate.PolicyPriority
		if ok && (wanted || n >= 0 && n < netstate.PolicyPriorities) {
			state.Add(o)
		}
	}
	return state, nil
}

// list returns the kernel's messages of all policies. netlink's own list does not do: it takes an IPv6 address that
// ends in twelve zeros for an IPv4 one (fd00:244:: for 253.0.2.68), and loses the length of its prefix.
func (p *Policies) list() ([][]byte, error) {
	return rtnl.Retry("the IPsec policies", func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_XFRM: p.read}
		req.AddRawData(make([]byte, nl.SizeofXfrmUserpolicyId))
		return req.Execute(unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
	})
}

// directions are netlink's by ours.
var directions = [...]netlink.Dir{netstate.In: netlink.XFRM_DIR_IN, netstate.Out: netlink.XFRM_DIR_OUT,
	netstate.Fwd: netlink.XFRM_DIR_FWD}

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
	l := &netlink.XfrmPolicy{Src: rtnl.IPNet(o.Src), Dst: rtnl.IPNet(o.Dst), Dir: directions[o.Dir], Priority: o.Priority}
	if o.Block {
		l.Action = netlink.XFRM_POLICY_BLOCK
	}
	if o.From.IsValid() {
		t := netlink.XfrmPolicyTmpl{Src: o.From.AsSlice(), Dst: o.To.AsSlice(), Proto: netlink.XFRM_PROTO_ESP,
			Mode: netlink.XFRM_MODE_TUNNEL, Reqid: o.ReqID}
		if o.Optional {
			t.Optional = 1
		}
		l.Tmpls = append(l.Tmpls, t)
	}
	return l
}
