package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Where subnet.Config has Store both or leases, a node publishes each of its subnets in the Lease object that bears the
// subnet's name, the claim on it. Nobody else can publish that subnet then. A label tells agents which Lease objects
// are published; the node is the object's owner, or if an administrator made the object, the one that an annotation
// names.

// part is what a published Lease object says of its node: one address family of a record.
type part struct {
	name    string // of the object
	node    string // empty: it has none
	uid     types.UID
	created time.Time    // in UTC, so that == holds
	subnet  netip.Prefix // invalid if the object's name is not a subnet's
	backend string
	asks    string // the annotation read-nodes
	values
}

// part reads a Lease object's metadata.
func (a annotations) part(m *metav1.ObjectMeta) part {
	p := part{name: m.Name, created: m.CreationTimestamp.UTC(), backend: value(m, a.backend), node: value(m, a.node),
		asks: value(m, a.asks)}
	if len(m.OwnerReferences) == 1 && m.OwnerReferences[0].Kind == "Node" {
		p.node, p.uid = m.OwnerReferences[0].Name, m.OwnerReferences[0].UID
	}
	if len(m.OwnerReferences) > 1 || subnet.CheckNode(p.node) != nil {
		p.node = ""
	}
	of, ok := claimed(m.Name)
	if !ok {
		return p
	}
	p.subnet = of
	for _, f := range a.both {
		if f.family == netstate.FamilyOf(of.Addr()) {
			p.values = values{data: value(m, f.data), public: value(m, f.public)}
		}
	}
	return p
}

// owner returns the name of the record that p is part of. Without a node that is none that a node can have, which lease
// refuses.
func (p part) owner() string { return cmp.Or(p.node, "lease/"+p.name) }

// compare orders the objects of one node: those of today's subnets are its youngest.
func (p part) compare(o part) int {
	return cmp.Or(o.created.Compare(p.created), cmp.Compare(p.name, o.name))
}

// join makes a record of a node's parts, which are in order. It is as old as the oldest.
func join(parts []part) record {
	r := record{name: parts[0].owner(), uid: parts[0].uid, created: parts[len(parts)-1].created, managed: "true"}
	unnamed := ""
	for _, f := range netstate.Families {
		of := func(p part) bool { return p.subnet.IsValid() && netstate.FamilyOf(p.subnet.Addr()) == f }
		i := slices.IndexFunc(parts, of)
		if i < 0 {
			continue
		}
		*r.of(f) = parts[i].values
		r.podCIDRs += "," + parts[i].subnet.String()
		r.backend = cmp.Or(r.backend, parts[i].backend)
	}
	for _, p := range parts {
		r.asks = cmp.Or(r.asks, p.asks)
		if !p.subnet.IsValid() {
			unnamed = "," + p.name // which lease refuses
		}
	}
	if r.podCIDRs += unnamed; r.podCIDRs != "" {
		r.podCIDRs = r.podCIDRs[1:]
	}
	return r
}

// leaseObjects is the store that a reflector keeps in sync with the metadata of published Lease objects.
type leaseObjects struct {
	*records
	forbidden time.Time         // since when they may not be read; zero: they may; under mu
	parts     map[string]part   // by the objects' names; under mu
	nodes     map[string][]part // the same by their owners, each in order; under mu
	revision  revision          // of the reflector only, as is relist
	relist    time.Time
}

var (
	_ cache.ReflectorStore         = (*leaseObjects)(nil)
	_ cache.ResourceVersionUpdater = (*leaseObjects)(nil)
)

// maxParts is how many objects of one node are kept: more than two are wrong, and every agent would keep them.
const maxParts = 8

func (s *Store) newLeases() *leaseObjects {
	return &leaseObjects{records: s.newRecords(), parts: map[string]part{}, nodes: map[string][]part{}}
}

// Add implements cache.ReflectorStore.
func (c *leaseObjects) Add(obj any) error { return c.Update(obj) }

// Update implements cache.ReflectorStore.
func (c *leaseObjects) Update(obj any) error {
	p := c.annotations.part(&obj.(*metav1.PartialObjectMetadata).ObjectMeta)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.parts[p.name]; ok && old != p {
		c.take(old)
		if old.owner() != p.owner() {
			c.enter(old.owner())
		}
	}
	c.add(p)
	c.enter(p.owner())
	return nil
}

// Delete implements cache.ReflectorStore.
func (c *leaseObjects) Delete(obj any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.parts[obj.(*metav1.PartialObjectMetadata).Name]; ok {
		c.take(old)
		c.enter(old.owner())
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (c *leaseObjects) Replace(list []any, _ string) error {
	c.mu.Lock()
	c.parts, c.nodes = make(map[string]part, len(list)), make(map[string][]part, len(list))
	for _, obj := range list {
		c.add(c.annotations.part(&obj.(*metav1.PartialObjectMetadata).ObjectMeta))
	}
	all := make([]record, 0, len(c.nodes))
	for _, parts := range c.nodes {
		all = append(all, join(parts))
	}
	c.mu.Unlock()
	c.replace(all, func(record) bool { return true })
	return nil
}

// Resync implements cache.ReflectorStore.
func (c *leaseObjects) Resync() error { return nil }

// UpdateResourceVersion implements cache.ResourceVersionUpdater.
func (c *leaseObjects) UpdateResourceVersion(version string) { c.revision.advance(version) }

// add keeps p, unless it is there or its node has too many.
func (c *leaseObjects) add(p part) {
	all := c.nodes[p.owner()]
	at, ok := slices.BinarySearchFunc(all, p, part.compare)
	if ok || len(all) >= maxParts {
		return
	}
	c.parts[p.name], c.nodes[p.owner()] = p, slices.Insert(all, at, p)
}

// take forgets p.
func (c *leaseObjects) take(p part) {
	delete(c.parts, p.name)
	c.nodes[p.owner()] = slices.DeleteFunc(c.nodes[p.owner()], func(o part) bool { return o.name == p.name })
}

// enter makes the record of a node what its parts are.
func (c *leaseObjects) enter(node string) {
	if parts := c.nodes[node]; len(parts) > 0 {
		c.put(entry{record: join(parts)})
		return
	}
	delete(c.nodes, node)
	c.leave(node)
}

// own returns the objects of this node, and whether all objects are known.
func (c *leaseObjects) own() ([]part, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes[c.self]), c.synced
}

// object returns what the Lease object for a subnet of l is annotated with; nil: nothing. The first one also asks, if
// that is known.
func (a annotations) object(l subnet.Lease, st subnet.Stack, asks *string) map[string]*string {
	set := map[string]*string{a.backend: new(l.Backend)}
	if asks != nil {
		set[a.asks] = nil
		if *asks != "" && st.Subnet == l.Stacks[0].Subnet {
			set[a.asks] = asks
		}
	}
	for _, f := range a.both {
		if f.family == st.Family() {
			set[f.data], set[f.public] = new(encodePayload(st.Data)), new(st.Underlay.String())
		}
	}
	return set
}

// publishes reports whether p says what it should of a subnet of a Node.
func (a annotations) publishes(p part, uid types.UID, l subnet.Lease, st subnet.Stack, asks *string) bool {
	asked := p.asks
	if asks != nil {
		if asked = ""; st.Subnet == l.Stacks[0].Subnet {
			asked = *asks
		}
	}
	return p.name == claimName(st.Subnet) && p.node == l.Node && (p.uid == uid || p.uid == "") && p.asks == asked &&
		p.backend == l.Backend && p.data == encodePayload(st.Data) && p.public == st.Underlay.String()
}

// unpublished reports whether parts, a node's objects, are not what l and asks need.
func (a annotations) unpublished(parts []part, uid types.UID, l subnet.Lease, asks *string) bool {
	missing := func(st subnet.Stack) bool {
		return !slices.ContainsFunc(parts, func(p part) bool { return a.publishes(p, uid, l, st, asks) })
	}
	return len(parts) != len(l.Stacks) || slices.ContainsFunc(l.Stacks, missing)
}

// errNotOurs is the error for an object that is another node's.
func errNotOurs(space string, c claim) error {
	holder := "nobody"
	if c.Spec.HolderIdentity != nil {
		holder = fmt.Sprintf("node %.100q", *c.Spec.HolderIdentity)
	}
	return fmt.Errorf("the Lease object %s/%s is of %s (its spec.holderIdentity): peers that read Lease objects "+
		"would not find this node, so all read Nodes until it is deleted", space, c.Name, holder)
}
