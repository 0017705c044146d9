package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// record is what the store keeps of a Node object, of which thousands can be cached. It is comparable, so that
// a status update, which every node makes every few minutes, is seen to change nothing.
type record struct {
	name, uid string
	created   time.Time // in UTC, so that == holds
	podCIDRs  string    // separated by commas
	managed   string
	backend   string
	v4, v6    notes

	// Of this node only:
	network  condition
	choose   [2]string // the annotations node-public-ip and node-public-ipv6
	internal string    // the addresses of type InternalIP, separated by commas
}

// notes are a node's annotations for one address family, as they stand there.
type notes struct{ data, public, overwrite string }

// condition is what the store writes of the condition NetworkUnavailable.
type condition struct{ status, reason, message string }

func (r record) notes(f netstate.Family) notes {
	if f == netstate.IPv4 {
		return r.v4
	}
	return r.v6
}

// isPeer says whether r's node runs flannel or Twill.
func (r record) isPeer() bool { return r.managed == "true" }

// compare orders nodes by age; creation times are whole seconds, so names decide between nodes of one moment.
func (r record) compare(o record) int {
	return cmp.Or(r.created.Compare(o.created), cmp.Compare(r.name, o.name))
}

// podCIDR is the node's subnet of one family; invalid: it has none.
func (r record) podCIDR(f netstate.Family) (netip.Prefix, error) {
	for s := range strings.SplitSeq(r.podCIDRs, ",") {
		if s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("podCIDR %q is not of the form address/length", s)
		}
		if netstate.FamilyOf(p.Addr()) == f {
			return p.Masked(), nil
		}
	}
	return netip.Prefix{}, nil
}

// lease reads r as a peer's lease, in the families of the pools.
func (a annotations) lease(r record) (subnet.Lease, error) {
	l := subnet.Lease{Node: r.name, Backend: r.backend}
	if err := within("backend-type", r.backend, maxText); err != nil {
		return l, err
	}
	for _, f := range a.families {
		st, err := f.stack(r)
		if err != nil {
			return l, err
		}
		if st.Subnet.IsValid() {
			l.Stacks = append(l.Stacks, st)
		}
	}
	if len(l.Stacks) == 0 {
		return l, fmt.Errorf("neither a podCIDR (%q) with its annotation public-ip nor one with public-ipv6", r.podCIDRs)
	}
	return l, nil
}

// stack reads one family's part of r; its Subnet is invalid if the node has no such part. A dual-stack cluster
// may have nodes of a single family, and nodes whose agent is not yet told of the second one.
func (f familyNotes) stack(r record) (subnet.Stack, error) {
	n := r.notes(f.family)
	cidr, err := r.podCIDR(f.family)
	switch {
	case err != nil:
		return subnet.Stack{}, err
	case !cidr.IsValid() || n.public == "" && n.data == "":
		return subnet.Stack{}, nil
	}
	if cidr.Bits() > f.longest {
		return subnet.Stack{}, fmt.Errorf("podCIDR %s has no room for pods: want at most /%d", cidr, f.longest)
	}
	if cidr.Bits() <= f.network.Bits() && cidr.Overlaps(f.network) {
		return subnet.Stack{}, fmt.Errorf("podCIDR %s has all of the network %s", cidr, f.network)
	}
	public, err := f.address(f.publicName, n.public)
	if err != nil {
		return subnet.Stack{}, err
	}
	data, err := f.payload(n.data)
	return subnet.Stack{Subnet: cidr, Underlay: public, Data: data}, err
}
