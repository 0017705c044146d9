package kube

import (
	"context"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Every node's kubelet writes its Node object again and again, and a watch of whole objects would bring 13 kB each
// time. So the store lists and watches metadata, which tells the podCIDRs too, or nearly always (told.go). A Node is read
// in full when it is a peer whose metadata does not, or is contradicted, or when it is this node's, whose conditions
// are wanted too.

// reads is how many Nodes are read in full at a time.
const reads = 16

// enter brings c up to date with the events.
func (s *Store) enter(ctx context.Context, c *nodes, events []change) error {
	var now []*node
	for _, e := range events {
		if e.kind == added || e.kind == modified {
			now = append(now, e.node)
		}
	}
	others, err := s.complete(ctx, c, now)
	if err != nil {
		return err
	}
	for _, r := range others {
		c.update(r)
	}
	for _, e := range events {
		switch {
		case e.kind == deleted:
			c.remove(e.name)
		case e.kind != bookmark && !e.gone:
			c.update(e.record)
		}
	}
	return nil
}

// complete gives nodes, of which there is metadata, what they lack. It returns what turned out to be wrong of nodes
// that are in c and not among them.
func (s *Store) complete(ctx context.Context, c *nodes, all []*node) ([]record, error) {
	full, err := s.readFull(ctx, c.lacking(all))
	if err != nil {
		return nil, err
	}
	suspects, err := s.readFull(ctx, c.suspects(all, full))
	if err != nil {
		return nil, err
	}
	maps.Copy(full, suspects)
	for _, n := range all {
		c.complete(n, full)
		delete(suspects, n.name)
	}
	return c.wrong(suspects), nil
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

// lacking are the nodes of which metadata is not enough, and its versions.
func (c *nodes) lacking(all []*node) map[string]string {
	versions := map[string]string{}
	for _, n := range all {
		if n.name == c.self || n.isPeer() && c.podCIDRs(n.record) == "" && !c.notes.plausible(n) {
			versions[n.name] = n.version
		}
	}
	return versions
}

// suspects are the nodes to read because of what new peers among all tell, which are not in full: see disputed.
func (c *nodes) suspects(all []*node, full map[string]*node) map[string]string {
	told, versions := map[string]string{}, map[string]string{}
	for _, n := range all {
		if _, read := full[n.name]; !read && n.isPeer() && c.podCIDRs(n.record) == "" {
			told[n.name], versions[n.name] = n.told, n.version
		}
	}
	if len(told) == 0 {
		return nil
	}
	names := map[string]string{}
	for name := range disputed(told, c.known(told, full)) {
		if _, read := full[name]; !read {
			names[name] = versions[name]
		}
	}
	return names
}

// known are the podCIDRs of the nodes that are in c or in full, but not in told.
func (c *nodes) known(told map[string]string, full map[string]*node) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, n := range full {
			if n != nil && !yield(name, n.podCIDRs) {
				return
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for name, e := range c.entries {
			if told[name] == "" && full[name] == nil && !yield(name, e.podCIDRs) {
				return
			}
		}
	}
}

// complete gives n its podCIDRs, or all that was read of it.
func (c *nodes) complete(n *node, full map[string]*node) {
	f, read := full[n.name]
	switch {
	case read && (f == nil || f.uid != n.uid):
		n.gone = true
	case read && n.name == c.self:
		version := n.version // from it the watch goes on
		*n = *f
		n.version = version
	case read:
		n.podCIDRs = f.podCIDRs
	default:
		if n.podCIDRs = c.podCIDRs(n.record); n.podCIDRs == "" && n.isPeer() {
			n.podCIDRs = n.told
		}
	}
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

// wrong are the records in c that say other podCIDRs than what was read of their nodes.
func (c *nodes) wrong(full map[string]*node) (records []record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range full {
		e, ok := c.entries[name]
		if ok && n != nil && e.uid == n.uid && e.podCIDRs != n.podCIDRs {
			r := e.record
			r.podCIDRs = n.podCIDRs
			records = append(records, r)
		}
	}
	return records
}
