package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/subnet"
)

// owners say whose an address is. Which addresses a pod has is in its status, where its node writes what it likes: so an
// address in a node's lease is no other node's pod's.
type owners struct {
	holders holders
	claims  map[netip.Addr][]*Pod // the pods whose status has it, the newest first
	refused map[netip.Addr]bool   // there are some whose address it is not
}

func newOwners(pods []*Pod, leases []subnet.Lease) owners {
	o := owners{newHolders(leases), make(map[netip.Addr][]*Pod, len(pods)), map[netip.Addr]bool{}}
	for _, p := range pods {
		for _, a := range p.Addrs {
			o.move(a, nil, p)
		}
	}
	return o
}

// move takes the claim of was to an address away, and adds that of now. Both may be nil.
func (o owners) move(a netip.Addr, was, now *Pod) {
	claims := o.claims[a]
	for _, gone := range []*Pod{was, now} { // now may be there already: a snapshot may be ahead of its changes
		if gone != nil {
			claims = slices.DeleteFunc(claims, func(p *Pod) bool { return p.UID == gone.UID && p.String() == gone.String() })
		}
	}
	if now != nil && slices.Contains(now.Addrs, a) && (Endpoint{Addr: a, Pod: now}).Selectable() {
		at, _ := slices.BinarySearchFunc(claims, now, func(p, now *Pod) int {
			if p.Newer(now) {
				return -1
			}
			return 1
		})
		claims = slices.Insert(claims, at, now)
	}
	if o.claims[a] = claims; len(claims) == 0 {
		delete(o.claims, a)
	}
	if delete(o.refused, a); len(o.refusedAt(a)) > 0 {
		o.refused[a] = true
	}
}

// of returns the pod that has an address; nil if none has. It is the newest of the node that has the lease. In no lease it
// is the newest of the node of whose pods that have not ended one is the oldest: no node says how old a pod is.
func (o owners) of(a netip.Addr) (owner *Pod) {
	claims := o.claims[a]
	if len(claims) == 0 {
		return nil
	}
	lease, held := o.holders.of(a)
	for _, p := range slices.Backward(claims) {
		if (!held || o.holders.mayBe(lease, p.Node)) && (owner == nil || p.Node == owner.Node) {
			owner = p
		}
	}
	return owner
}

// refusedAt returns the pods whose status has an address that is not theirs.
func (o owners) refusedAt(a netip.Addr) (all []*Pod) {
	owner := o.of(a)
	for _, p := range o.claims[a] {
		if owner == nil || p.Node != owner.Node {
			all = append(all, p)
		}
	}
	return all
}

// holders are the nodes that have leases.
type holders struct {
	leases  map[netip.Prefix]int // places in nodes, by the subnet
	lengths []int                // of the subnets
	nodes   []string             // of the leases
	names   map[string]bool      // the same
}

func newHolders(leases []subnet.Lease) holders {
	h := holders{leases: make(map[netip.Prefix]int, len(leases)), names: make(map[string]bool, len(leases))}
	for i, l := range leases {
		h.nodes, h.names[l.Node] = append(h.nodes, l.Node), true
		for _, s := range l.Stacks {
			if _, held := h.leases[s.Subnet]; held || !s.Subnet.IsValid() {
				continue
			}
			if h.leases[s.Subnet] = i; !slices.Contains(h.lengths, s.Subnet.Bits()) {
				h.lengths = append(h.lengths, s.Subnet.Bits())
			}
		}
	}
	return h
}

// of returns the node that has the lease with an address, if one has: of some that overlap the first.
func (h holders) of(a netip.Addr) (node string, held bool) {
	i := h.first(a)
	if i == len(h.nodes) {
		return "", false
	}
	return h.nodes[i], true
}

// first returns the place of the first lease that has an address; behind the last one if none has.
func (h holders) first(a netip.Addr) int {
	first := len(h.nodes)
	for _, bits := range h.lengths {
		if p, err := a.Prefix(bits); err == nil {
			if i, ok := h.leases[p]; ok {
				first = min(first, i)
			}
		}
	}
	return first
}

// mayBe reports whether the node of a lease is the node of a name. Records of flannel's in etcd do not name their node: the
// store calls it by its address, or by the record. It can be any node that has no other lease.
func (h holders) mayBe(lease, node string) bool {
	if lease == node {
		return true
	}
	_, err := netip.ParseAddr(lease)
	return (err == nil || strings.Contains(lease, "/")) && !h.names[node]
}
