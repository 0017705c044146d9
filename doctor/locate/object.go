// Package locate finds where a packet is lost, and what loses it. It is a pure function from what was seen of real
// packets in each network namespace on their path, and what each of these holds that can lose packets.
package locate

import (
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// Object is a piece of a network namespace's configuration that can lose packets. Judgements read its fields; Text,
// Usual and Fix are for people, except that an empty Usual says that the object is usual.
type Object struct {
	Kind Kind `json:"kind"`
	// Dev is the device that it belongs to; empty: all of the namespace.
	Dev string `json:"dev,omitempty"`
	// Part is what of it is unusual, by its tool's word: a sysctl's name ("net.ipv4.ip_forward"), an attribute or option
	// ("mtu", "hairpin"), a state (Down). Of an entry that somebody wrote it is the sort: "blackhole", "netem root".
	Part string `json:"part,omitempty"`
	// Value is what the part has ("1400", "on"), or the state of a neighbour ("FAILED").
	Value string `json:"value,omitempty"`
	// MAC is that of a neighbour or of a forwarding entry.
	MAC string `json:"mac,omitempty"`
	// Via is the next hop of a route that has one.
	Via netip.Addr `json:"-"`
	// Bridge is the one that a port, or a forwarding entry, belongs to.
	Bridge string `json:"bridge,omitempty"`
	// Key is netstate's, if it has such objects.
	Key netstate.Key `json:"-"`
	// Text is the object as its tool prints it, with all that identifies it: "inet fw forward handle 7: tcp dport 80
	// drop", "net.ipv4.conf.eth0.rp_filter = 1", "32000: from 10.244.1.0/24 lookup 77".
	Text string `json:"text"`
	// Usual is what a namespace has instead that nobody altered: "0", "no such entry".
	Usual string `json:"usual,omitempty"`
	// Fix is the command that takes it away, or sets it back.
	Fix string `json:"fix,omitempty"`
	// About are the addresses that it is about; invalid: all.
	About netip.Prefix `json:"about"`
	// Table and Chain are those of a firewall rule, Target is the chain that it has led the packet to, and Comment its writer's.
	Table   string `json:"table,omitempty"`
	Chain   string `json:"chain,omitempty"`
	Target  string `json:"target,omitempty"`
	Comment string `json:"comment,omitempty"`
}

// The parts of a device that are states, without a value.
const (
	Down       = "down"
	NoCarrier  = "no carrier"
	Unattached = "no bridge, no address and no route" // of a virtual cable that leads nowhere
)

// Failed is the state of a neighbour that did not answer.
const Failed = "FAILED"

// Is reports whether a part of the object has one of the values; without values, any.
func (o Object) Is(part string, values ...string) bool {
	return o.Part == part && (len(values) == 0 || slices.Contains(values, o.Value))
}

// Kind is a part of the kernel's network configuration.
type Kind string

// The kinds.
const (
	Rule       Kind = "rule"        // of a firewall: nftables or iptables
	PolicyRule Kind = "policy rule" // of routing: ip rule
	Route      Kind = "route"
	Neighbour  Kind = "neighbour"
	Link       Kind = "link"        // a device: its flags, MTU, MAC and whether it is up
	Address    Kind = "address"     // of a device
	BridgePort Kind = "bridge port" // flags, state and VLANs of a port
	FDB        Kind = "FDB entry"
	Sysctl     Kind = "sysctl"
	Qdisc      Kind = "qdisc" // and its filters
	IPsec      Kind = "IPsec policy"
	Socket     Kind = "socket" // that nobody listens on
)
