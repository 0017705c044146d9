package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// leaseFaults are records of other nodes that cannot be true, as they stand in what the agent knew last, and
// the loss of that memory.
var leaseFaults = []Fault{
	{Name: "duplicate-underlay", Finding: "duplicate-underlay", Description: "a peer has this node's public IP",
		Inject: alterCheckpoint(func(c *checkpoint) error {
			c.Peers[len(c.Peers)-1].Stacks[0]["Underlay"] = c.Local.Stacks[0]["Underlay"]
			return nil
		}), Undo: restartAgent},
	{
		Name:        "duplicate-mac",
		Finding:     "duplicate-mac",
		Description: "two peers have the same VTEP MAC, as cloned machines do",
		Backends:    vxlanOnly,
		Inject:      alterPeer(func(last, first stack) { last["Data"] = first["Data"] }),
		Undo:        restartAgent,
	},
	{
		Name:        "duplicate-key",
		Finding:     "duplicate-key",
		Description: "two peers have the same public key, as cloned machines do",
		Backends:    []string{"wireguard"},
		Inject:      alterPeer(func(last, first stack) { last["Data"] = first["Data"] }),
		Undo:        restartAgent,
	},
	{Name: "duplicate-subnet", Finding: "duplicate-subnet", Description: "two peers hold the same subnet",
		Inject: alterPeer(func(last, first stack) { last["Subnet"] = first["Subnet"] }), Undo: restartAgent},
	{Name: "peer-other-port", Finding: "peer-skipped", Description: "a peer uses another UDP port", Backends: vxlanOnly,
		Inject: alterPeer(func(last, _ stack) { last["Data"].(stack)["Port"] = 4789 }), Undo: restartAgent},
	{Name: "peer-other-vni", Finding: "peer-skipped", Description: "a peer uses another VNI", Backends: vxlanOnly,
		Inject: alterPeer(func(last, _ stack) { last["Data"].(stack)["VNI"] = 7 }), Undo: restartAgent},
	{Name: "peer-outside", Finding: "peer-skipped", Description: "a peer's subnet is outside of the network",
		Inject: alterPeer(func(last, _ stack) { last["Subnet"] = outside(last["Subnet"]) }), Undo: restartAgent},
	{Name: "peer-unreadable", Finding: "peer-skipped", Description: "a node's record in the store cannot be read",
		Inject: alterCheckpoint(func(c *checkpoint) error {
			c.Skips = append(
				c.Skips,
				map[string]string{
					"Node":   "broken",
					"Code":   "unreadable",
					"Reason": `backend-data "{": unexpected end of JSON input`,
				},
			)
			return nil
		}), Undo: restartAgent},
	{
		Name:        "checkpoint-damaged",
		Finding:     "lease-damaged",
		Description: "the agent's checkpoint is cut off",
		Backends:    written,
		Inject: func(_ context.Context, v *Target) error {
			return os.WriteFile(v.checkpoint(), []byte(`{"Version":1,"Node":`), 0o600)
		},
		Undo: restartAgent,
	},
	{
		Name:        "state-lost",
		Finding:     "no-lease",
		Description: "checkpoint and subnet.env are gone, as after a reboot without an agent",
		Backends:    written,
		Inject: func(_ context.Context, v *Target) error {
			return errors.Join(os.Remove(v.checkpoint()), os.Remove(v.Node.SubnetFile()))
		},
		Undo: restartAgent,
	},
}

func (v *Target) checkpoint() string { return filepath.Join(v.Node.Dir(), "checkpoint.json") }

// stack is one address family of a lease, as the checkpoint has it.
type stack = map[string]any

// checkpoint is the agent's file, as far as faults alter it.
type checkpoint struct {
	Version int
	Node    string
	Network json.RawMessage
	Local   record
	Peers   []record
	Skips   []any
}

// record is a node's lease.
type record struct {
	Node, Backend string
	Stacks        []stack
}

// alterPeer changes the record of the last peer; it is told the first one's too.
func alterPeer(alter func(last, first stack)) func(context.Context, *Target) error {
	return alterCheckpoint(func(c *checkpoint) error {
		if len(c.Peers) < 2 {
			return fmt.Errorf("the checkpoint of %s has %d peers: want two", c.Node, len(c.Peers))
		}
		alter(c.Peers[len(c.Peers)-1].Stacks[0], c.Peers[0].Stacks[0])
		return nil
	})
}

func alterCheckpoint(alter func(*checkpoint) error) func(context.Context, *Target) error {
	return func(_ context.Context, v *Target) error {
		data, err := os.ReadFile(v.checkpoint())
		if err != nil {
			return err
		}
		var c checkpoint
		if err := json.Unmarshal(data, &c); err != nil {
			return err
		}
		if err := alter(&c); err != nil {
			return err
		}
		if data, err = json.Marshal(c); err != nil {
			return err
		}
		return os.WriteFile(v.checkpoint(), data, 0o600)
	}
}

// outside is a subnet of the same family that is in no lab's network.
func outside(subnet any) string {
	if text, ok := subnet.(string); ok && strings.Contains(text, ":") {
		return "fd00:99::/64"
	}
	return "10.99.0.0/24"
}

// distantFaults are not on the target: it only sees that packets do not come back.
var distantFaults = []Fault{
	{
		Name:        "udp-filtered-behind",
		Finding:     "udp-sent-unanswered",
		Probe:       true,
		Description: "a firewall between the nodes drops encapsulated packets from the peer",
		Backends:    ported,
		Inject: onUnderlay(
			"nft add table bridge filter",
			"nft add chain bridge filter through { type filter hook forward priority 0 ; }",
			"nft add rule bridge filter through {ip} saddr {at} udp dport {port} drop",
		),
		Undo: onUnderlay("nft delete table bridge filter"),
	},
	{
		Name:        "udp-filtered-ahead",
		Finding:     "udp-sent-unanswered",
		Probe:       true,
		Description: "a firewall between the nodes drops encapsulated packets to the peer",
		Backends:    ported,
		Inject: onUnderlay(
			"nft add table bridge filter",
			"nft add chain bridge filter through { type filter hook forward priority 0 ; }",
			"nft add rule bridge filter through {ip} daddr {at} udp dport {port} drop",
		),
		Undo: onUnderlay("nft delete table bridge filter"),
	},
	{
		Name:        "tcp-lost",
		Finding:     "tcp-lost",
		Probe:       true,
		Description: "encapsulated TCP is dropped, as after a card that breaks its checksums; pings pass",
		Backends:    vxlanOnly,
		Inject: onUnderlay(
			"nft add table bridge filter",
			"nft add chain bridge filter through { type filter hook forward priority 0 ; }",
			"nft add rule bridge filter through ip protocol udp udp dport 8472 @th,312,8 6 drop",
		),
		IPv4: true,
		Undo: onUnderlay("nft delete table bridge filter"),
	},
	{
		Name:        "tcp-lost-udp",
		Finding:     "tcp-lost",
		Probe:       true,
		Description: "TCP in UDP is dropped between the nodes; pings pass",
		Backends: []string{
			"udp",
		},
		Inject: onUnderlay(
			"nft add table bridge filter",
			"nft add chain bridge filter through { type filter hook forward priority 0 ; }",
			"nft add rule bridge filter through ip protocol udp udp dport 8285 @th,136,8 6 drop",
		),
		IPv4: true,
		Undo: onUnderlay("nft delete table bridge filter"),
	},
	{
		Name:        "path-mtu",
		Finding:     "path-mtu",
		Probe:       true,
		Description: "a switch on the way drops packets of more than 1400 bytes",
		Inject:      onUnderlay("ip link set {name} mtu 1400"),
		Undo:        onUnderlay("ip link set {name} mtu 1500"),
	},
	{
		Name:        "peer-unplugged",
		Finding:     "peer-unanswered",
		Probe:       true,
		Description: "the peer's network cable is pulled",
		Inject: onUnderlay(
			"ip link set {name} down",
			"ip link set {name} nomaster",
		),
		Undo: onUnderlay("ip link set {name} master br1", "ip link set {name} up"),
	},
}

// onUnderlay runs command lines where the switches are; {name} is the peer's port there.
func onUnderlay(lines ...string) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		h, err := v.Lab.Find("underlay")
		if err != nil {
			return err
		}
		for _, line := range lines {
			words := strings.Fields(line)
			for i, w := range words {
				switch w {
				case "{self}":
					words[i] = v.Address(v.Node.Underlay()).String() + "/32"
				case "{at}":
					words[i] = v.Address(v.Peer.Underlay()).String()
				case "{port}":
					words[i] = fmt.Sprint(v.port())
				case "{ip}":
					words[i] = map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6"}[v.Family]
				case "{name}":
					words[i] = v.Peer.Name
				}
			}
			if _, err := h.Exec(ctx, words...); err != nil {
				return err
			}
		}
		return nil
	}
}
