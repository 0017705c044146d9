package kube

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Every node's kubelet writes its Node object again and again, and a watch of whole objects would bring 13 kB each
// time. So the store watches metadata, which has all but the podCIDRs. Those cannot be changed once they are there: a
// Node is read in full only when it is a peer whose podCIDRs are not known yet, or when it is this node's, whose
// conditions are wanted too.

// reads is how many Nodes are read in full at a time.
const reads = 16

// enter brings c up to date with the events.
func (s *Store) enter(ctx context.Context, c *nodes, events []change) error {
	lacking := map[string]string{}
	for _, e := range events {
		if c.lacks(e) {
			lacking[e.name] = e.version
		}
	}
	full, err := s.readFull(ctx, lacking)
	if err != nil {
		return err
	}
	for _, e := range events {
		switch e.kind {
		case deleted:
			c.remove(e.name)
		case added, modified:
			if n := c.complete(e, full); n != nil {
				c.update(n.record)
			}
		}
	}
	return nil
}

// readFull reads nodes by name, each at least as new as its version; nil stands for one that is gone. It tries until
// ctx is done: an event that were passed over would not come again.
func (s *Store) readFull(ctx context.Context, versions map[string]string) (map[string]*node, error) {
	names := slices.Collect(maps.Keys(versions))
	got := make([]*node, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(reads)
	for i, name := range names {
		group.Go(func() error {
			return s.retry(ctx, taskWatch, func() (err error) {
				got[i], err = s.api.leanNode(ctx, s.lean(), name, versions[name])
				return err
			})
		})
	}
	err := group.Wait()
	full := make(map[string]*node, len(names))
	for i, name := range names {
		full[name] = got[i]
	}
	return full, err
}

// lacks says whether the metadata of e is not enough.
func (c *nodes) lacks(e change) bool {
	if e.kind != added && e.kind != modified {
		return false
	}
	return e.name == c.self || e.isPeer() && c.podCIDRs(e.record) == ""
}

// complete is the node of e with its podCIDRs. Nil: what e tells of is gone already, and another event will say so.
func (c *nodes) complete(e change, full map[string]*node) *node {
	if !c.lacks(e) {
		e.podCIDRs = c.podCIDRs(e.record)
		return e.node
	}
	n := full[e.name]
	if n == nil || n.uid != e.uid {
		return nil
	}
	if e.name == c.self {
		return n
	}
	e.podCIDRs = n.podCIDRs
	return e.node
}

// podCIDRs are those of a node that is known already, empty if it is not or had none.
func (c *nodes) podCIDRs(r record) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[r.name]; ok && e.uid == r.uid {
		return e.podCIDRs
	}
	return ""
}
