// Package locate finds where a packet is lost, and what loses it. It is a pure function from what was seen of real
// packets in each network namespace on their path, and what each of these holds that can lose packets.
package locate

import "net/netip"

// Object is a piece of a network namespace's configuration that can lose packets.
type Object struct {
	Kind Kind `json:"kind"`
	// Dev is the device that it belongs to; empty: all of the namespace.
	Dev string `json:"dev,omitempty"`
	// Text is the object as its tool prints it, with all that identifies it: "inet fw forward handle 7: tcp dport 80
	// drop", "net.ipv4.conf.eth0.rp_filter = 1", "32000: from 10.244.1.0/24 lookup 77".
	Text string `json:"text"`
	// Usual is what a namespace has instead that nobody altered: "0", "no such entry".
	Usual string `json:"usual,omitempty"`
	// Fix is the command that takes it away, or sets it back.
	Fix string `json:"fix,omitempty"`
	// About are the addresses that it is about; invalid: all.
	About netip.Prefix `json:"about"`
	// Table and Chain are those of a rule of nftables.
	Table string `json:"table,omitempty"`
	Chain string `json:"chain,omitempty"`
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
