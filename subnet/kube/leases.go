package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/twill-net/twill/subnet"
)

// Leases reads a list of Nodes, as kubectl prints it in JSON, and returns the leases that their annotations hold, flannel's or
// Twill's, oldest first, and those that cannot be read. An empty prefix is DefaultPrefix.
func Leases(prefix string, pools []subnet.Pool, nodes []byte) (leases []subnet.Lease, skips []subnet.Skip, err error) {
	if prefix, err = fullPrefix(cmp.Or(prefix, DefaultPrefix)); err != nil {
		return nil, nil, err
	}
	var all struct{ Items []node }
	if err := json.Unmarshal(nodes, &all); err != nil {
		return nil, nil, fmt.Errorf("read the list of nodes: %w", err)
	}
	a := newAnnotations(prefix, pools)
	var records []record
	for i := range all.Items {
		n := &all.Items[i]
		r := a.record(&n.ObjectMeta)
		r.podCIDRs = n.Spec.podCIDRs()
		if r.isPeer() {
			records = append(records, r)
		}
	}
	slices.SortFunc(records, record.compare)
	for _, r := range records {
		l, err := a.lease(r)
		if err != nil {
			skips = append(skips, subnet.Skip{Node: r.name, Code: subnet.Unreadable, Detail: err.Error()})
			continue
		}
		leases = append(leases, l)
	}
	return leases, skips, nil
}
