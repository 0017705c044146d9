package kube

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Every node's kubelet writes its Node object again and again, and a watch of whole objects would bring 13 kB each
// time. So the store lists and watches metadata. That lacks a peer's podCIDRs, which never change while the Node exists:
// a stranger is read in full once, and then known by its UID. This node's own object is read after each change, because
// its status is wanted too.

// maxReads is how many Nodes are read in full at a time.
const maxReads = 16

// A Node that was read, and has to be read again, waits: this node's own shortly, and a peer that had no podCIDR longer
// each time, because it may be written to as often as its kubelet likes.
const (
	ownPause               = 100 * time.Millisecond
	leastPause, mostPauses = 500 * time.Millisecond, time.Minute
)

// stranger is a Node to be read in full, or one that was and may have to be again.
type stranger struct {
	uid     string
	version string // it is to be read at least as new as this; empty: it was
	wait    backoff
	next    time.Time
}

// strangers are the Nodes to be read, by name.
type strangers struct {
	came chan struct{} // there are more

	mu    sync.Mutex
	names map[string]*stranger
}

func newStrangers() *strangers {
	return &strangers{came: make(chan struct{}, 1), names: map[string]*stranger{}}
}

// add asks for a Node to be read.
func (w *strangers) add(n *node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.names[n.name]
	if !ok || v.uid != n.uid {
		v = &stranger{uid: n.uid, wait: backoff{least: leastPause, most: mostPauses}}
		w.names[n.name] = v
	}
	v.version = n.version
	select {
	case w.came <- struct{}{}:
	default:
	}
}

// remove forgets a Node.
func (w *strangers) remove(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.names, name)
}

// clear forgets all Nodes.
func (w *strangers) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.names)
}

// due returns the Nodes that are to be read now, with their versions, and how long it is until the next one is due.
func (w *strangers) due(now time.Time) (versions map[string]string, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	versions, wait = map[string]string{}, time.Hour
	for name, v := range w.names {
		switch {
		case v.version == "":
		case !v.next.After(now):
			versions[name], v.version = v.version, ""
		default:
			wait = min(wait, v.next.Sub(now))
		}
	}
	return versions, wait
}

// done notes how the reading of a Node went: whether there is no reason to read it again, and otherwise when it may be.
// A version asks for it anyway, as after an error.
func (w *strangers) done(name string, known bool, version string, pause time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.names[name]
	switch {
	case !ok:
		return
	case known && v.version == "":
		delete(w.names, name)
		return
	case v.version == "":
		v.version = version
	}
	if pause == 0 {
		pause = v.wait.step()
	}
	v.next = time.Now().Add(pause)
}

// resolve reads strangers until ctx is done. Meanwhile the watch goes on.
func (s *Store) resolve(ctx context.Context, c *nodes) {
	for ctx.Err() == nil {
		versions, wait := c.strangers.due(time.Now())
		if len(versions) > 0 {
			s.meet(ctx, c, versions)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-c.strangers.came:
		case <-t.C:
		}
		t.Stop()
	}
}

// meet reads Nodes and enters what they are.
func (s *Store) meet(ctx context.Context, c *nodes, versions map[string]string) {
	var group errgroup.Group
	group.SetLimit(maxReads)
	for name, version := range versions {
		group.Go(func() error {
			n, err := s.api.leanNode(ctx, s.lean(), name, version)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				c.strangers.done(name, false, version, 0)
				s.waits.tell(taskRead, err)
			default:
				pause := time.Duration(0)
				if name == c.self {
					pause = ownPause
				}
				c.strangers.done(name, n == nil || c.resolved(n), "", pause)
				s.waits.tell(taskRead, nil)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// enter brings c up to date with the events.
func (c *nodes) enter(events []change) {
	for _, e := range events {
		switch e.kind {
		case deleted:
			c.remove(e.node)
		case added, modified:
			c.update(e.node)
		}
	}
}

// everything lists all Nodes as they were at a version or later, with the podCIDRs of all peers. While hardly any are known it lists them whole; otherwise
// their metadata, and reads what is missing.
func (s *Store) everything(ctx context.Context, c *nodes, version string) (*nodeList, error) {
	if s.known.empty() {
		return s.listWhole(ctx)
	}
	all, err := s.api.listNodes(ctx, s.lean(), asMetadataList, version)
	if err != nil {
		return nil, err
	}
	s.known.reach(all.version)
	lacking := map[string]string{}
	for _, n := range all.items {
		if c.lacks(n) {
			lacking[n.name] = n.version
		}
	}
	if len(lacking) > few {
		return s.listWhole(ctx)
	}
	whole, err := s.readWhole(ctx, lacking)
	if err != nil {
		return nil, err
	}
	for i, n := range all.items {
		if w := whole[n.name]; w != nil {
			all.items[i] = w // it is as new or newer: the watch says so again
		}
	}
	all.items = slices.DeleteFunc(all.items, func(n *node) bool {
		w, read := whole[n.name]
		return read && w == nil
	})
	return all, nil
}

func (s *Store) listWhole(ctx context.Context) (*nodeList, error) {
	all, err := s.api.listNodes(ctx, s.lean(), asProto, "")
	if err == nil {
		s.known.reach(all.version)
	}
	return all, err
}

// readWhole reads Nodes by name, each at least as new as its version; nil stands for one that is gone.
func (s *Store) readWhole(ctx context.Context, versions map[string]string) (map[string]*node, error) {
	var mu sync.Mutex
	whole := make(map[string]*node, len(versions))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxReads)
	for name, version := range versions {
		group.Go(func() error {
			n, err := s.api.leanNode(ctx, s.lean(), name, version)
			mu.Lock()
			defer mu.Unlock()
			whole[name] = n
			return err
		})
	}
	return whole, group.Wait()
}
