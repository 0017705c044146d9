package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// record is what the store keeps of a Node, or of its Lease objects, of which thousands can be cached. It is comparable,
// so that a heartbeat is seen to change nothing.
type record struct {
	name     string
	uid      types.UID
	created  time.Time // in UTC, so that == holds
	podCIDRs string    // separated by commas
	managed  string
	backend  string
	v4, v6   values
	asks     string // of Lease objects only: their annotation read-nodes

	// Of this node only:
	network  condition // NetworkUnavailable
	reached  condition // TwillPeersReached
	internal string    // the addresses of type InternalIP, separated by commas
	external string    // likewise of type ExternalIP, if they are asked for
}

// values are a node's annotations for one address family; choose is kept of this node only.
type values struct{ data, public, overwrite, choose string }

// of returns r's annotations for one address family.
func (r *record) of(f netstate.Family) *values {
	if f == netstate.IPv4 {
		return &r.v4
	}
	return &r.v6
}

// condition returns one of the node's that the store keeps.
func (r record) condition(kind string) condition {
	if kind == peersReached {
		return r.reached
	}
	return r.network
}

// underlays returns a lease with nothing but the addresses that peers get.
func (r *record) underlays() (l subnet.Lease) {
	for _, f := range netstate.Families {
		if a, err := netip.ParseAddr(r.of(f).public); err == nil && netstate.FamilyOf(a) == f {
			l.Stacks = append(l.Stacks, subnet.Stack{Underlay: a})
		}
	}
	return l
}

// record reads the metadata of a Node.
func (a annotations) record(m *metav1.ObjectMeta) record {
	r := record{name: m.Name, uid: m.UID, created: m.CreationTimestamp.UTC()}
	r.managed, r.backend = value(m, a.managed), value(m, a.backend)
	for _, f := range a.both {
		*r.of(f.family) = values{data: value(m, f.data), public: value(m, f.public), overwrite: value(m, f.overwrite)}
	}
	return r
}

// value returns an annotation, of a long one the beginning: enough to see that it is too long.
func value(m *metav1.ObjectMeta, name string) string {
	v := m.Annotations[name]
	if len(v) > maxData {
		v = strings.Clone(v[:maxData+1])
	}
	return v
}

// own reads this node's Node.
func (a annotations) own(n *node) record {
	r := a.record(&n.ObjectMeta)
	r.podCIDRs = n.Spec.podCIDRs()
	for _, f := range a.both {
		r.of(f.family).choose = value(&n.ObjectMeta, f.choose)
	}
	for _, c := range n.Status.Conditions {
		switch c.Type {
		case networkUnavailable:
			r.network = c.condition
		case peersReached:
			r.reached = c.condition
		}
	}
	for _, addr := range n.Status.Addresses {
		_, err := netip.ParseAddr(addr.Address)
		switch {
		case err != nil:
		case addr.Type == "InternalIP":
			r.internal = strings.TrimPrefix(r.internal+","+addr.Address, ",")
		case addr.Type == "ExternalIP" && a.external:
			r.external = strings.TrimPrefix(r.external+","+addr.Address, ",")
		}
	}
	return r
}

// isPeer reports whether r's node runs flannel or Twill.
func (r record) isPeer() bool { return r.managed == "true" }

// compare orders nodes by age; creation times are whole seconds, so names decide between nodes of one second.
func (r record) compare(o record) int {
	return cmp.Or(r.created.Compare(o.created), cmp.Compare(r.name, o.name))
}

// podCIDR returns the node's subnet of one family, invalid if it has none.
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
	if err := subnet.CheckNode(r.name); err != nil {
		return l, err
	}
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

// stack reads one family's part of r; its Subnet is invalid if the node has no such part. A dual-stack cluster may have
// nodes of a single family, and nodes whose agent does not know the second one yet.
func (f familyNames) stack(r record) (subnet.Stack, error) {
	v := r.of(f.family)
	cidr, err := r.podCIDR(f.family)
	switch {
	case err != nil:
		return subnet.Stack{}, err
	case !cidr.IsValid() || v.public == "" && v.data == "":
		return subnet.Stack{}, nil
	}
	if cidr.Bits() > f.longest {
		return subnet.Stack{}, fmt.Errorf("podCIDR %s has no room for pods: want at most /%d", cidr, f.longest)
	}
	if cidr.Bits() <= f.network.Bits() && cidr.Overlaps(f.network) {
		return subnet.Stack{}, fmt.Errorf("podCIDR %s has all of the network %s", cidr, f.network)
	}
	public, err := f.address(f.publicName, v.public)
	if err != nil {
		return subnet.Stack{}, err
	}
	data, err := f.payload(v.data)
	return subnet.Stack{Subnet: cidr, Underlay: public, Data: data}, err
}
