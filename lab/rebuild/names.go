package rebuild

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// names are the report's addresses, MACs and devices, and what they are in the lab.
type names map[string]string

// tokens are what a name can be: an address, a MAC, a device.
var tokens = regexp.MustCompile(`[0-9A-Za-z_.:-]+`)

// replace puts the lab's names in place of the report's.
func (n names) replace(text []byte) []byte {
	if len(n) == 0 {
		return text
	}
	return tokens.ReplaceAllFunc(text, func(token []byte) []byte {
		if to, ok := n[string(token)]; ok {
			return []byte(to)
		}
		from, end, ok := strings.Cut(string(token), "-") // a range of addresses
		if !ok || n[from] == "" && n[end] == "" {
			return token
		}
		return []byte(cmp.Or(n[from], from) + "-" + cmp.Or(n[end], end))
	})
}

// add keeps the first name that something got.
func (n names) add(from, to string) {
	if _, ok := n[from]; !ok && from != "" && to != "" {
		n[from] = to
	}
}

// podPorts are the pods' ports, by the marks that the CNI plugin gave them, and the pods' addresses.
func podPorts(links []link) map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, l := range links {
		if p, ok := netstate.ParsePort(l.Name, l.Alias); ok {
			all[l.Name] = p.Addresses()
		}
	}
	return all
}

// inOrder are the ports in the order of their pods' addresses.
func inOrder(ports map[string][]netip.Addr) []string {
	first := func(name string) netip.Addr {
		if len(ports[name]) == 0 {
			return netip.Addr{}
		}
		return ports[name][0]
	}
	return slices.SortedFunc(maps.Keys(ports), func(a, b string) int {
		return cmp.Or(first(a).Compare(first(b)), strings.Compare(a, b))
	})
}

// nameAll finds what the report's names are in the lab, on the node whose state have is.
func (r *Report) nameAll(l *lab.Lab, have state, saved subnet.Snapshot) names {
	n := names{}
	theirs := r.leases()
	ours := append([]subnet.Lease{saved.Local}, saved.Peers...)
	nodes := r.nodes()
	for _, their := range theirs {
		i := slices.IndexFunc(nodes, func(l subnet.Lease) bool { return l.Node == their.Node })
		if i < 0 || i >= len(l.Nodes()) {
			continue
		}
		at := slices.IndexFunc(ours, func(o subnet.Lease) bool { return o.Node == l.Nodes()[i].Name })
		if at >= 0 {
			n.addLease(their, ours[at], r.subnets(their))
		}
	}
	theirDev, ourDev := r.underlay(), lab.NodeDevice
	if theirDev != ourDev {
		n.add(theirDev, ourDev)
		n.add(ourDev, theirDev)
	}
	n.add(macOf(r.seen.links, theirDev), macOf(have.links, ourDev))
	for family, gateway := range r.seen.gateways {
		n.add(gateway, have.gateways[family])
	}
	theirPorts, ourPorts := r.ports(), podPorts(have.links)
	names := inOrder(ourPorts)
	for i, name := range inOrder(theirPorts) {
		if i < len(names) {
			n.add(name, names[i])
			n.add(macOf(r.seen.links, name), macOf(have.links, names[i]))
			for k, addr := range theirPorts[name] {
				if k < len(ourPorts[names[i]]) {
					n.add(addr.String(), ourPorts[names[i]][k].String())
				}
			}
		}
	}
	return n
}

// addLease adds what is in a lease: the address on the underlay, the gateway of pods, MACs and keys.
func (n names) addLease(their, our subnet.Lease, subnets []netip.Prefix) {
	for _, a := range their.Stacks {
		for _, b := range our.Stacks {
			if netstate.FamilyOf(a.Underlay) != netstate.FamilyOf(b.Underlay) {
				continue
			}
			n.add(a.Underlay.String(), b.Underlay.String())
			if slices.Contains(subnets, a.Subnet) { // others are none of the cluster's
				n.add(a.Subnet.Addr().String(), b.Subnet.Addr().String())
				n.add(a.Subnet.Addr().Next().String(), b.Subnet.Addr().Next().String())
			}
			var from, to map[string]any
			if json.Unmarshal(a.Data, &from) == nil && json.Unmarshal(b.Data, &to) == nil {
				for key, value := range from {
					text, _ := value.(string)
					here, _ := to[key].(string)
					n.add(text, here)
				}
			}
		}
	}
}

// underlay is the device that the node's packets to peers left by: the one with the node's address, or the one that was
// chosen, or the first that is no part of another network.
func (r *Report) underlay() string {
	var plain []string
	for _, l := range r.seen.links {
		for _, a := range l.Addrs {
			for _, s := range r.facts.Lease.Snapshot.Local.Stacks {
				if a.Local == s.Underlay.String() {
					return l.Name
				}
			}
		}
		if l.Type == "ether" && l.Master == "" && l.Alias == "" && slices.Contains([]string{"", "veth"}, l.Info.Kind) {
			plain = append(plain, l.Name)
		}
	}
	for _, u := range r.facts.Underlay.Underlays {
		return u.Dev
	}
	return append(plain, lab.NodeDevice)[0]
}

func macOf(links []link, name string) string {
	for _, l := range links {
		if l.Name == name {
			return l.MAC
		}
	}
	return ""
}

// published reports whether all peers say as much as this node: before their agents came, only their subnets were kept.
func published(s subnet.Snapshot) bool {
	says := func(l subnet.Lease) int {
		return len(slices.DeleteFunc(slices.Clone(l.Stacks), func(s subnet.Stack) bool { return len(s.Data) <= len("null") }))
	}
	return !slices.ContainsFunc(s.Peers, func(l subnet.Lease) bool { return says(l) != says(s.Local) })
}

// savedLeases are those in the checkpoint of a lab's node, once all peers are there.
func savedLeases(ctx context.Context, l *lab.Lab, n *lab.Node) (subnet.Snapshot, error) {
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		saved, err := agent.ReadCheckpoint(n.CheckpointFile())
		if err == nil && len(saved.Snapshot.Peers) >= len(l.Nodes())-1 && published(saved.Snapshot) {
			tick.Stop()
			return saved.Snapshot, nil
		}
		select {
		case <-ctx.Done():
			return saved.Snapshot, fmt.Errorf("wait for the leases of all nodes: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}
