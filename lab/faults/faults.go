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
	"strings"

	"github.com/twill-net/twill/lab"
)

// Fault is one thing that goes wrong.
type Fault struct {
	Name     string
	Says     string   // what is done, for people
	Backends []string // that have what is injured; empty: all
	// Inject does the damage. It returns when the damage is done, and before anything can have healed that
	// has to be undone first (a link that is set down and up again).
	Inject func(context.Context, *Victim) error
	// Healed says whether the damage is gone, for faults after which the node's state is another than before.
	// Nil: the node's state must be what it was.
	Healed func(context.Context, *Victim) (bool, error)
	// Lossless says that no packet between pods may be lost.
	Lossless bool
	// IPv4 says that there is no such thing in labs of IPv6 alone.
	IPv4 bool
	// Running says that it is damage to a running agent only: without one it cannot be done, or leaves none.
	Running bool
	// Store is the store that the lab must have; empty: any.
	Store string
	// Finding is what twillctl doctor says first, on the victim and with its agent stopped; empty: the fault is an
	// event, or nothing that shows on the victim.
	Finding string
	// Probe says that the doctor sees it only by sending packets (--probe).
	Probe bool
	// KeepAgent says that the agent runs on while the doctor looks: it does not heal this, and the finding is about it.
	KeepAgent bool
	// Undo takes the damage back. Nil: a running agent heals it by itself.
	Undo func(context.Context, *Victim) error
}

// Heal brings the victim back to health: by Undo, and by its agent.
func (f Fault) Heal(ctx context.Context, v *Victim) error {
	var err error
	if f.Undo != nil {
		err = f.Undo(ctx, v)
	}
	return errors.Join(err, v.Node.RestartAgent(ctx))
}

// Applies says whether the fault can be injected into labs of that spec.
func (f Fault) Applies(spec lab.Spec) bool {
	if f.IPv4 && spec.Family == lab.IPv6 {
		return false
	}
	return (len(f.Backends) == 0 || slices.Contains(f.Backends, spec.Backend)) && (f.Store == "" || f.Store == spec.Store)
}

// Suits says whether the fault can be injected into that victim: what leads to a peer without a tunnel is as with host-gw.
func (f Fault) Suits(v *Victim) bool {
	spec := v.Lab.Spec()
	if v.direct() {
		spec.Backend = "host-gw"
	}
	return f.Applies(spec) && (!f.IPv4 || !v.Six)
}

// Core are the faults of single entries, devices, parameters and rules: what there is of each kind of drift.
func Core() []Fault { return slices.Concat(entryFaults, deviceFaults, hostFaults) }

// Victim is the node that is injured, and a peer of it that its pods talk to.
type Victim struct {
	Lab        *lab.Lab
	Node, Peer *lab.Node
	Six        bool   // what is injured is the IPv6 side
	Overlay    string // the name of the device that wraps packets
	Device     string // the underlay's

	held io.Closer // what a fault holds until it is undone
}

// NewVictim is node1 of a lab, with node2 as its peer, and the lab's first address family.
func NewVictim(l *lab.Lab) *Victim {
	return NewVictimOf(l, l.Nodes()[1], l.Spec().Family == lab.IPv6)
}

// NewVictimOf is node1 of a lab with that peer, and its IPv4 or IPv6 side.
func NewVictimOf(l *lab.Lab, peer *lab.Node, six bool) *Victim {
	v := &Victim{Lab: l, Node: l.Nodes()[0], Peer: peer, Six: six, Device: lab.NodeDevice}
	switch l.Spec().Backend {
	case "udp":
		v.Overlay = "flannel0"
	case "ipip":
		v.Overlay = "flannel.ipip"
	case "wireguard":
		v.Overlay = map[bool]string{false: "flannel-wg", true: "flannel-wg-v6"}[six]
	default:
		v.Overlay = map[bool]string{false: "flannel.1", true: "flannel-v6.1"}[six]
	}
	return v
}

// Subnet is a node's, of the victim's address family.
func (v *Victim) Subnet(n *lab.Node) netip.Prefix {
	for _, p := range n.Subnets() {
		if p.Addr().Is6() == v.Six {
			return p
		}
	}
	return netip.Prefix{}
}

// Address is the one of addrs that is of the victim's family.
func (v *Victim) Address(addrs []netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is6() == v.Six {
			return a
		}
	}
	return netip.Addr{}
}

// direct says whether there is no tunnel between victim and peer.
func (v *Victim) direct() bool {
	return !slices.Contains(overlays, v.Lab.Spec().Backend) || v.Lab.Spec().DirectRouting && v.Node.Segment() == v.Peer.Segment()
}

// port is the UDP port of wrapped packets, 0 for what is not wrapped in UDP.
func (v *Victim) port() int {
	ports := map[string]int{"vxlan": 8472, "udp": 8285, "wireguard": 51820}
	if v.Overlay == "flannel-wg-v6" {
		return 51821
	}
	return ports[v.Lab.Spec().Backend]
}

// wrapped is how iptables matches wrapped packets; IPIP is protocol 4.
func (v *Victim) wrapped() string {
	if port := v.port(); port != 0 {
		return fmt.Sprintf("udp --dport %d", port)
	}
	return "4"
}

// All are the faults, in the order of the tables that are made of them.
func All() []Fault {
	return slices.Concat(entryFaults, deviceFaults, hostFaults, clusterFaults, ruleFaults, wayFaults, fileFaults, leaseFaults, processFaults, connectionFaults, distantFaults, moverFaults, kernelFaults, abuseFaults)
}

// run runs one command line in a node's namespace.
func run(ctx context.Context, n *lab.Node, format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if _, err := n.Exec(ctx, strings.Fields(line)...); err != nil {
		return fmt.Errorf("%s: %s: %w", n.Name, line, err)
	}
	return nil
}

// script injects by command lines on the victim, in which {peer}, {vtep}, {mac}, {at}, {dev} and {eth} stand for
// the peer's subnet, its VTEP address and MAC, its underlay address, and the victim's devices.
func script(lines ...string) func(context.Context, *Victim) error {
	return func(ctx context.Context, v *Victim) error {
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

// batch is script for lines of one "ip -batch", between which nothing has time to heal.
func batch(lines ...string) func(context.Context, *Victim) error {
	return func(ctx context.Context, v *Victim) error {
		replace, err := v.names(ctx)
		if err != nil {
			return err
		}
		input := strings.NewReader(replace(strings.Join(lines, "\n") + "\n"))
		return v.Node.Attach(ctx, input, io.Discard, io.Discard, "ip", "-batch", "-")
	}
}

// names is what completes a command line. They are written for IPv4, and translated for the IPv6 side.
func (v *Victim) names(ctx context.Context) (func(string) string, error) {
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
	words := []string{"{half}", netip.PrefixFrom(peer.Addr(), peer.Bits()+1).String(), "{self}", v.Address(v.Node.Underlay()).String(),
		"{veth}", v.podLink(ctx), "{peer}", peer.String(), "{vtep}", peer.Addr().String(), "{mac}", mac,
		"{at}", v.Address(v.Peer.Underlay()).String(), "{dev}", v.Overlay, "{eth}", v.Device,
		"{wrapped}", v.wrapped(), "{own}", v.Subnet(v.Node).Addr().String(), "{gateway}", v.gateway()}
	return func(line string) string {
		if v.Six {
			line = strings.NewReplacer(six...).Replace(line)
		}
		return strings.NewReplacer(words...).Replace(line)
	}, nil
}

// podLink is the host's end of a pod of the victim, empty if it has none.
func (v *Victim) podLink(ctx context.Context) string {
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

// gateway is the victim's address on its bridge, with the prefix length.
func (v *Victim) gateway() string {
	subnet := v.Subnet(v.Node)
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()).String()
}
