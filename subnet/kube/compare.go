package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/twill-net/twill/subnet"
)

// Compare reads lists of Nodes and of Lease objects, as kubectl prints them in JSON, and returns how many nodes are
// peers, and which of them agents with subnet.StoreLeases would not see as they are. An empty prefix is DefaultPrefix.
func Compare(prefix string, pools []subnet.Pool, nodes, leases []byte) (peers int, differ []string, err error) {
	if prefix, err = fullPrefix(cmp.Or(prefix, DefaultPrefix)); err != nil {
		return 0, nil, err
	}
	var all struct{ Items []*node }
	var objects struct{ Items []*claim }
	if err := json.Unmarshal(nodes, &all); err != nil {
		return 0, nil, fmt.Errorf("read the list of nodes: %w", err)
	}
	if err := json.Unmarshal(leases, &objects); err != nil {
		return 0, nil, fmt.Errorf("read the list of leases: %w", err)
	}
	a := newAnnotations(prefix, pools)
	parts := map[string][]part{}
	for _, o := range objects.Items {
		if o.Labels[a.managed] == "true" {
			p := a.part(&o.ObjectMeta)
			parts[p.owner()] = append(parts[p.owner()], p)
		}
	}
	for _, n := range all.Items {
		r := a.record(&n.ObjectMeta)
		if r.podCIDRs = n.Spec.podCIDRs(); !r.isPeer() {
			continue
		}
		peers++
		if !a.same(r, parts[n.Name]) {
			differ = append(differ, n.Name)
		}
	}
	return peers, differ, nil
}

// same reports whether parts, the Lease objects of a node, say what its record does. One that cannot be read is not
// seen in either.
func (a annotations) same(r record, parts []part) bool {
	want, err := a.lease(r)
	if err != nil || len(parts) == 0 {
		return err != nil
	}
	slices.SortFunc(parts, part.compare)
	have, err := a.lease(join(parts))
	return err == nil && have.Equal(want)
}
