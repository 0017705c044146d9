// Package faults is a library of what goes wrong with node networks, each by name: how to inject it into a lab,
// and what must hold when it has healed. Entries are injured with iproute2, so that what is tested does not
// test itself.
package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// Fault is one thing that goes wrong.
type Fault struct {
	Name        string
	Description string   // what is done, for people
	Backends    []string // that have what is injured; empty: all
	// Inject does the damage. It returns when the damage is done, and before anything can have healed that
	// has to be undone first (a link that is set down and up again).
	Inject func(context.Context, *Target) error
	// Healed reports whether the damage is gone, for faults after which the node's state is another than before.
	// Nil: the node's state must be what it was.
	Healed func(context.Context, *Target) (bool, error)
	// Lossless says that no packet between pods may be lost.
	Lossless bool
	// IPv4 says that there is no such thing in labs of IPv6 alone.
	IPv4 bool
	// IPv6 says that there is no such thing in labs of IPv4 alone.
	IPv6 bool
	// Running says that it is damage to a running agent only: without one it cannot be done, or leaves none.
	Running bool
	// Policies says that the lab's agents must enforce network policies.
	Policies bool
	// Store is the store that the lab must have; empty: any.
	Store string
	// Finding is what twillctl doctor says first, on the target and with its agent stopped; empty: the fault is an
	// event, or nothing that shows on the target.
	Finding string
	// Probe says that the doctor sees it only by sending packets (--probe).
	Probe bool
	// KeepAgent says that the agent runs on while the doctor looks: it does not heal this, and the finding is about it.
	KeepAgent bool
	// Undo takes the damage back. Nil: a running agent heals it by itself.
	Undo func(context.Context, *Target) error
}

// Heal brings the target back to health: by Undo, and by its agent.
func (f Fault) Heal(ctx context.Context, v *Target) error {
	var err error
	if f.Undo != nil {
		err = f.Undo(ctx, v)
	}
	return errors.Join(err, v.Node.RestartAgent(ctx))
}

// Applies reports whether the fault can be injected into labs of that spec.
func (f Fault) Applies(spec lab.Spec) bool {
	if f.IPv4 && spec.Family == lab.IPv6 || f.IPv6 && spec.Family == lab.IPv4 || f.Policies && !spec.NetworkPolicy {
		return false
	}
	return (len(f.Backends) == 0 || slices.Contains(f.Backends, spec.Backend)) &&
		(f.Store == "" || f.Store == spec.Store)
}

// AppliesTo reports whether the fault can be injected into that target: what leads to a peer without a
// tunnel is as with host-gw.
func (f Fault) AppliesTo(v *Target) bool {
	spec := v.Lab.Spec()
	if v.direct() {
		spec.Backend = "host-gw"
	}
	return f.Applies(spec) && (!f.IPv4 || v.Family != netstate.IPv6)
}

// Core are the faults of single entries, devices, parameters and rules: what there is of each kind of drift.
func Core() []Fault { return slices.Concat(entryFaults, deviceFaults, hostFaults) }

// Target is the node that is injured, and a peer of it that its pods talk to.
type Target struct {
	Lab        *lab.Lab
	Node, Peer *lab.Node
	Family     netstate.Family // of what is damaged
	Overlay    string          // the name of the device that wraps packets
	Device     string          // the underlay's

	held io.Closer // what a fault holds until it is undone
}

// NewTarget is node1 of a lab, with node2 as its peer, and the lab's first address family.
func NewTarget(l *lab.Lab) *Target {
	return NewTargetOf(l, l.Nodes()[1], l.Spec().Families()[0])
}

// NewTargetOf is node1 of a lab with that peer, and its IPv4 or IPv6 side.
func NewTargetOf(l *lab.Lab, peer *lab.Node, f netstate.Family) *Target {
	v := &Target{Lab: l, Node: l.Nodes()[0], Peer: peer, Family: f, Device: lab.NodeDevice}
	switch l.Spec().Backend {
	case "udp":
		v.Overlay = "flannel0"
	case "ipip":
		v.Overlay = "flannel.ipip"
	case "wireguard":
		v.Overlay = map[netstate.Family]string{netstate.IPv4: "flannel-wg", netstate.IPv6: "flannel-wg-v6"}[f]
	default:
		v.Overlay = map[netstate.Family]string{netstate.IPv4: "flannel.1", netstate.IPv6: "flannel-v6.1"}[f]
	}
	return v
}

// Subnet is a node's, of the target's address family.
func (v *Target) Subnet(n *lab.Node) netip.Prefix {
	for _, p := range n.Subnets() {
		if netstate.FamilyOf(p.Addr()) == v.Family {
			return p
		}
	}
	return netip.Prefix{}
}

// Address is the one of addrs that is of the target's family.
func (v *Target) Address(addrs []netip.Addr) netip.Addr {
	for _, a := range addrs {
		if netstate.FamilyOf(a) == v.Family {
			return a
		}
	}
	return netip.Addr{}
}

// direct reports whether there is no tunnel between target and peer.
func (v *Target) direct() bool {
	return !slices.Contains(overlays, v.Lab.Spec().Backend) ||
		v.Lab.Spec().DirectRouting && v.Node.Segment() == v.Peer.Segment()
}

// port is the UDP port of wrapped packets, 0 for what is not wrapped in UDP.
func (v *Target) port() int {
	ports := map[string]int{"vxlan": 8472, "udp": 8285, "wireguard": 51820}
	if v.Overlay == "flannel-wg-v6" {
		return 51821
	}
	return ports[v.Lab.Spec().Backend]
}

// wrapped is how iptables matches wrapped packets; IPIP is protocol 4.
func (v *Target) wrapped() string {
	if port := v.port(); port != 0 {
		return fmt.Sprintf("udp --dport %d", port)
	}
	return "4"
}

// All are the faults, in the order of the tables that are made of them.
func All() []Fault {
	return slices.Concat(
		entryFaults,
		deviceFaults,
		hostFaults,
		clusterFaults,
		ruleFaults,
		wayFaults,
		fileFaults,
		leaseFaults,
		processFaults,
		connectionFaults,
		distantFaults,
		userspaceFaults,
		cloudFaults,
		policyFaults,
		kernelFaults,
		abuseFaults,
		sharedFaults,
	)
}

// run runs one command line in a node's namespace.
func run(ctx context.Context, n *lab.Node, format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if _, err := n.Exec(ctx, strings.Fields(line)...); err != nil {
		return fmt.Errorf("%s: %s: %w", n.Name, line, err)
	}
	return nil
}

// script injects by command lines on the target, in which {peer}, {vtep}, {mac}, {at}, {dev} and {eth} stand for
// the peer's subnet, its VTEP address and MAC, its underlay address, and the target's devices; {pod} is a pod of the
// target, {pods} its own subnet, and {kernel} the metric of the kernel's routes.
func script(lines ...string) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		replace, err := v.names(ctx)
		if err != nil {
			return err
		}
		for _, line := range lines {
			if err := run(ctx, v.Node, "%s", replace(line)); err != nil {
				return err
			}
		}
		return nil
	}
}

// batch is script for lines of one "ip -batch", between which nothing has time to heal where nobody else is busy.
func batch(lines ...string) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		replace, err := v.names(ctx)
		if err != nil {
			return err
		}
		input := strings.NewReader(replace(strings.Join(lines, "\n") + "\n"))
		return v.Node.Attach(ctx, input, io.Discard, io.Discard, "ip", "-batch", "-")
	}
}

// names is what completes a command line. They are written for IPv4, and translated for the IPv6 side.
func (v *Target) names(ctx context.Context) (func(string) string, error) {
	peer := v.Subnet(v.Peer)
	mac := ""
	if v.Lab.Spec().Backend == "vxlan" {
		out, err := v.Peer.Exec(ctx, "ip", "-o", "link", "show", v.Overlay)
		if err != nil {
			return nil, err
		}
		_, rest, _ := strings.Cut(out, "link/ether ")
		mac, _, _ = strings.Cut(rest, " ")
	}
	words := []string{
		"{half}",
		netip.PrefixFrom(peer.Addr(), peer.Bits()+1).String(),
		"{self}",
		v.Address(v.Node.Underlay()).String(),
		"{veth}",
		v.podLink(ctx),
		"{peer}",
		peer.String(),
		"{among}",
		v.among(),
		"{vtep}",
		peer.Addr().String(),
		"{mac}",
		mac,
		"{at}",
		v.Address(v.Peer.Underlay()).String(),
		"{dev}",
		v.Overlay,
		"{eth}",
		v.Device,
		"{wrapped}",
		v.wrapped(),
		"{own}",
		v.Subnet(v.Node).Addr().String(),
		"{gateway}",
		v.gateway(),
		"{pods}",
		v.Subnet(v.Node).String(),
		"{pod}",
		v.pod(),
		"{kernel}",
		strconv.Itoa(netstate.ConnectedRoute("", v.Subnet(v.Node)).Metric),
	}
	return func(line string) string {
		if v.Family == netstate.IPv6 {
			line = strings.NewReplacer(toIPv6...).Replace(line)
		}
		return strings.NewReplacer(words...).Replace(line)
	}, nil
}

// podLink is the host's end of a pod of the target, empty if it has none.
func (v *Target) podLink(ctx context.Context) string {
	out, err := v.Node.Exec(ctx, "ip", "-o", "link", "show", "type", "veth")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(out) {
		_, name, _ := strings.Cut(line, ": ")
		name, _, _ = strings.Cut(name, "@")
		if strings.HasPrefix(name, "veth") {
			return name
		}
	}
	return ""
}

// pod is the address of a pod of the target, empty if it has none.
func (v *Target) pod() string {
	for _, p := range v.Node.Pods() {
		return v.Address(p.Addrs).String()
	}
	return ""
}

// gateway is the target's address on its bridge, with the prefix length.
func (v *Target) gateway() string {
	subnet := v.Subnet(v.Node)
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()).String()
}
