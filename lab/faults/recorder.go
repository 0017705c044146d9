package faults

import (
	"context"
	"maps"
	"net/netip"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/netstate/firewall"
	"github.com/twill-net/twill/netstate/kernel"
)

// Recorder sees everything of Twill's on a node, and remembers how it was.
type Recorder struct {
	host   host.Host
	before netstate.State
}

// left is how the labs' nodes route to peers, so that a fault's route of that kind is seen.
var left = []netstate.Left{{Network: netip.MustParsePrefix("10.244.0.0/16"), Bits: 24, Gateways: true},
	{Network: netip.MustParsePrefix("fd00:244::/56"), Bits: 64, Gateways: true}}

// sysctls are those that the agent keeps; what the node does not have is not seen.
var sysctls = []string{
	"net/ipv4/ip_forward",
	"net/ipv4/conf/flannel.1/rp_filter",
	"net/ipv6/conf/all/forwarding",
	"net/ipv6/conf/flannel-v6.1/accept_ra",
	"net/ipv6/conf/cni0/accept_dad",
	"net/ipv6/conf/cni0/disable_ipv6",
	"net/ipv4/conf/cni0/forwarding",
	"net/ipv4/conf/cni0/arp_ignore",
	"net/ipv4/neigh/cni0/mcast_solicit",
	"net/ipv6/neigh/cni0/mcast_solicit",
	"net/bridge/bridge-nf-call-iptables",
	"net/bridge/bridge-nf-call-ip6tables",
}

// NewRecorder looks at a healthy node.
func NewRecorder(ctx context.Context, h host.Host) (*Recorder, error) {
	asked := netstate.State{}
	for _, name := range sysctls {
		asked.Add(netstate.Sysctl{Name: name})
	}
	before, err := observe(ctx, h, asked)
	for _, o := range before {
		if a, ok := o.(netstate.Addr); ok && a.Dev == "cni0" { // its route is seen only if it is asked for
			asked.Add(netstate.ConnectedRoute(a.Dev, a.Prefix))
		}
	}
	if err == nil {
		before, err = observe(ctx, h, asked)
	}
	return &Recorder{h, before}, err
}

// Diff is what is not as it was.
func (w *Recorder) Diff(ctx context.Context) (netstate.Plan, error) {
	now, err := observe(ctx, w.host, maps.Clone(w.before))
	if err != nil || maps.Equal(now, w.before) {
		return nil, err
	}
	return netstate.Diff(w.before, now), nil
}

func observe(ctx context.Context, h host.Host, want netstate.State) (state netstate.State, err error) {
	err = h.Do(func() error {
		k, err := kernel.New(left)
		if err != nil {
			return err
		}
		defer k.Close()
		f := firewall.New()
		defer f.Close()
		interfaces, err := k.Interfaces(ctx)
		if err != nil {
			return err
		}
		for _, i := range interfaces {
			if i.Port.Name != "" { // seen only if it is asked for, too
				want.Add(i.Port)
			}
		}
		if state, err = k.Observe(ctx, want); err != nil {
			return err
		}
		rules, err := f.Observe(ctx)
		state.Merge(rules)
		if err != nil {
			return err
		}
		policies, err := filter.New()
		if err != nil {
			return err
		}
		defer policies.Close()
		tables, err := policies.Observe(ctx, want)
		state.Merge(tables)
		return err
	})
	return state, err
}
