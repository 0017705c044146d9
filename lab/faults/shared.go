package faults

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/subnet"
)

// sharedFaults are what comes of what a node and its pods share with others: addresses, files, its name, its networks and
// the way to peers. They are the last, since a fault's place decides in which lab make test injects it.
var sharedFaults = []Fault{
	{
		Name:        "range-nearly-full",
		IPv4:        true,
		Finding:     "range-nearly-full",
		Description: "nine tenths of the node's addresses are reserved",
		Inject:      reserve(235),
		Undo:        unreserve,
	},
	{
		Name:        "env-contended",
		Finding:     "file-contended",
		Description: "another program writes subnet.env again and again",
		KeepAgent:   true,
		Inject:      duel,
		Undo:        restartAgent,
	},
	{
		Name:        "node-name-taken",
		Finding:     "node-name-taken",
		Description: "another machine has the node's name, and publishes its lease too",
		Store:       lab.File,
		KeepAgent:   true,
		Inject:      impersonate,
		Undo:        restartAgent,
	},
	{
		Name:        "underlay-taken",
		Finding:     "underlay-taken",
		Description: "the underlay's router has the node's address, too",
		Probe:       true,
		IPv4:        true,
		Inject:      onUnderlay("ip addr add {self} dev br1"),
		Undo:        onUnderlay("ip addr del {self} dev br1"),
	},
	{
		Name:        "underlay-below-ipv6",
		Finding:     "family-left-out",
		Description: "the underlay's MTU is set to 1290, which leaves less than IPv6 needs within a tunnel",
		Backends:    []string{"vxlan", "ipip"},
		IPv6:        true,
		Inject:      script("ip link set {eth} mtu 1290"),
		Undo:        script("ip link set {eth} mtu 1500"),
	},
	{
		Name:        "local-network",
		Finding:     "peer-skipped",
		Description: "the node is on a network that lies in a peer's subnet, and had no route to the peer before",
		Backends:    written,
		Inject: script("ip route del {peer}", "ip link add lan0 type veth peer name lan1", "ip link set lan1 up",
			"ip link set lan0 up", "ip addr add {among} dev lan0 nodad"),
		Undo: script("ip link del lan0"),
	},
}

// duels is how often one program writes before another's file is contended, with some to spare.
const duels = 12

// duel writes subnet.env anew each time that the agent has put it back.
func duel(ctx context.Context, v *Target) error {
	path := v.Node.SubnetFile()
	kept, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for range duels {
		if err := os.WriteFile(path, append([]byte("# another program's\n"), kept...), 0o644); err != nil {
			return err
		}
		if err := until(ctx, path+" is put back", func() (bool, error) {
			data, err := os.ReadFile(path)
			return string(data) == string(kept), err
		}); err != nil {
			return err
		}
	}
	return nil
}

// impersonations is how often another machine has written when the agent says that it does.
const impersonations = 3

// impersonate writes the node's lease as a machine at another address does, each time that the agent has written its own.
func impersonate(ctx context.Context, v *Target) error {
	own, other := v.Address(v.Node.Underlay()), v.elsewhere()
	for range impersonations {
		if err := v.publish(other); err != nil {
			return err
		}
		if err := until(ctx, "the agent publishes its own lease again", func() (bool, error) {
			at, err := v.published()
			return at == own, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// elsewhere is an address on the underlay that no node has.
func (v *Target) elsewhere() netip.Addr {
	b := v.Address(v.Node.Underlay()).AsSlice()
	b[len(b)-1] = 99
	a, _ := netip.AddrFromSlice(b)
	return a
}

// publish has the node's lease name that underlay address.
func (v *Target) publish(at netip.Addr) error {
	return v.Lab.EditLeases(func(leases []subnet.Lease) []subnet.Lease {
		if s := v.stack(leases); s != nil {
			s.Underlay = at
		}
		return leases
	})
}

// published is the underlay address that the node's lease names.
func (v *Target) published() (at netip.Addr, err error) {
	err = v.Lab.EditLeases(func(leases []subnet.Lease) []subnet.Lease {
		if s := v.stack(leases); s != nil {
			at = s.Underlay
		}
		return leases
	})
	return at, err
}

// stack is the node's in the target's family, nil if it has none.
func (v *Target) stack(leases []subnet.Lease) *subnet.Stack {
	for i := range leases {
		if leases[i].Node != v.Node.Name {
			continue
		}
		stacks := leases[i].Stacks
		if at := slices.IndexFunc(stacks, func(s subnet.Stack) bool { return s.Family() == v.Family }); at >= 0 {
			return &stacks[at]
		}
	}
	return nil
}

// among is an address of no pod in the upper half of the peer's subnet, with that half's length.
func (v *Target) among() string {
	subnet := v.Subnet(v.Peer)
	b := subnet.Addr().AsSlice()
	b[subnet.Bits()/8] |= 0x80 >> (subnet.Bits() % 8)
	b[len(b)-1] |= 0x40
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, subnet.Bits()+1).String()
}

// until waits until ok, for at most as long as a busy machine may take.
func until(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute/2)
	defer cancel()
	for {
		yes, err := ok()
		if yes {
			return nil
		}
		if end := wait(ctx, 20*time.Millisecond); end != nil {
			return fmt.Errorf("wait until %s: %w", what, cmp.Or(err, end))
		}
	}
}
