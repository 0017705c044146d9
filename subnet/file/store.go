// Package file is a subnet.Store on one JSON file that the agents of a small cluster share: a lab, a test, or
// a plan that is made offline.
//
//	{
//	  "leases": [
//	    {
//	      "node": "node1",
//	      "backend": "vxlan",
//	      "stacks": [
//	        {
//	          "subnet": "10.244.1.0/24",
//	          "underlay": "192.0.2.1",
//	          "data": {"VNI": 1, "VtepMAC": "0a:00:00:00:00:01"}
//	        }
//	      ]
//	    }
//	  ]
//	}
//
// There is one entry per node, oldest first, and one stack per address family; data is what the backend
// publishes. An entry that cannot be read is skipped and kept; a file that cannot be read is an outage, not an
// empty cluster. No file is an empty cluster.
//
// Writers hold a flock on <file>.lock (the file itself is replaced, so a lock on it would be a lock on a file
// that is gone) and replace the file by a rename, so that readers need no lock. A human may edit the file too.
package file

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// interval is how often Watch looks at the file. A stat costs a microsecond, works on every file system and sees
// every way of replacing a file; inotify would have to watch the directory and misses writers on other hosts.
const interval = 200 * time.Millisecond

// Store is a subnet.Store on a file.
type Store struct {
	path  string
	pools []subnet.Pool
	subnet.Exclusions

	mu       sync.Mutex
	own      *subnet.Lease // as acquired; nil before
	disputed func(subnet.Lease)
}

// New returns a Store on the file at path, which need not exist. Nodes lease subnets from pools, one per address
// family, IPv4 first.
func New(path string, pools []subnet.Pool) *Store {
	return &Store{path: path, pools: pools, disputed: func(subnet.Lease) {}}
}

// OnDispute implements subnet.Disputed.
func (s *Store) OnDispute(f func(subnet.Lease)) { s.disputed = f }

// Leases implements subnet.Lessor.
func (*Store) Leases() bool { return true }

// Last implements subnet.Store.
func (s *Store) Last(_ context.Context, want subnet.Lease) (subnet.Lease, bool, error) {
	doc, err := s.read()
	if err != nil {
		return subnet.Lease{}, false, err
	}
	l, ok := doc.lease(want.Node)
	return l, ok, nil
}

func (d document) lease(node string) (subnet.Lease, bool) {
	if i := d.find(node); i >= 0 {
		l, err := decode(d.Leases[i])
		return l, err == nil
	}
	return subnet.Lease{}, false
}

// Acquire implements subnet.Store. It waits while the file is malformed.
func (s *Store) Acquire(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	if want.Node == "" {
		return subnet.Lease{}, errors.New("acquire a lease: the node has no name: want one")
	}
	if err := subnet.Match(s.pools, want); err != nil {
		return subnet.Lease{}, err
	}
	for {
		l, err := s.claim(ctx, want)
		if !errors.As(err, new(malformedError)) {
			return l, err
		}
		if !loop.Sleep(ctx, interval) {
			return subnet.Lease{}, fmt.Errorf("acquire a lease: %w: %w", ctx.Err(), err)
		}
	}
}

// claim writes want to the node's entry, with the subnets that are there already if they are still right.
func (s *Store) claim(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimLocked(ctx, want)
}

func (s *Store) claimLocked(ctx context.Context, want subnet.Lease) (got subnet.Lease, err error) {
	err = s.update(ctx, func(doc *document) (changed bool, err error) {
		i := doc.find(want.Node)
		have, intact := doc.lease(want.Node)
		if got, err = subnet.Allocate(s.pools, s.preferred(want, have), append(doc.used(want.Node, s.pools), s.Excluded(s.pools)...)); err != nil {
			return false, s.Explain(err)
		}
		last := have // unless somebody altered it
		if s.own != nil && s.own.Node == want.Node {
			last = *s.own
		}
		got = got.After(last)
		if intact && have.Equal(got) {
			return false, nil
		}
		entry, err := encode(got)
		if err != nil {
			return false, err
		}
		if i < 0 {
			doc.Leases = append(doc.Leases, entry)
		} else {
			doc.Leases[i] = entry
		}
		return true, nil
	})
	if err != nil {
		return subnet.Lease{}, err
	}
	s.own = &got
	return got, nil
}

// preferred returns want with the best subnets to ask for: those that this Store acquired before, then those in the
// file, then want's own. The file comes second because somebody may have altered it.
func (s *Store) preferred(want, have subnet.Lease) subnet.Lease {
	stacks := want.Stacks
	want.Stacks = nil
	for i, w := range stacks {
		if h, ok := have.Stack(w.Family()); ok && s.pools[i].Keeps(h.Subnet) {
			w.Subnet = h.Subnet
		}
		if s.own != nil {
			if o, ok := s.own.Stack(w.Family()); ok && s.own.Node == want.Node {
				w.Subnet = o.Subnet
			}
		}
		want.Stacks = append(want.Stacks, w)
	}
	return want
}

// used returns the subnets of all nodes but one, with those of before.
func (d document) used(but string, pools []subnet.Pool) (used []netip.Prefix) {
	leases, _ := d.leases()
	for _, l := range leases {
		if l.Node == but {
			continue
		}
		for _, s := range l.Stacks {
			used = append(used, s.Subnet)
		}
		used = append(used, l.EarlierIn(pools)...)
	}
	return used
}

// Watch implements subnet.Store.
func (s *Store) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var seen *version
	for {
		if snapshot, now, ok := s.poll(ctx, seen); ok {
			f(snapshot)
			seen = &now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// poll returns the file as a Snapshot, if it is another version than seen. Errors are outages: the next tick tries
// again. An own entry that is not as it was acquired is written first, and read by the next poll.
func (s *Store) poll(ctx context.Context, seen *version) (subnet.Snapshot, version, bool) {
	now, err := s.stat()
	if err != nil || seen != nil && now == *seen && now.settled() {
		return subnet.Snapshot{}, version{}, false
	}
	doc, err := s.read()
	if err != nil || !s.keep(ctx, doc) {
		return subnet.Snapshot{}, version{}, false
	}
	return s.snapshot(doc), now, true
}

// keep reports whether the own entry in doc is as it was acquired; if not it claims it again.
func (s *Store) keep(ctx context.Context, doc document) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		return true
	}
	have, ok := doc.lease(s.own.Node)
	switch {
	case ok && have.Equal(*s.own):
		return true
	case ok && s.own.Moved(have):
		s.disputed(have)
	}
	// An error here is an outage like any other: the file is looked at again at the next tick.
	_, _ = s.claimLocked(ctx, *s.own)
	return false
}

func (s *Store) snapshot(doc document) (snapshot subnet.Snapshot) {
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	leases, skips := doc.leases()
	snapshot.Skips = skips
	for _, l := range leases {
		if own != nil && l.Node == own.Node {
			snapshot.Local = l
		} else {
			snapshot.Peers = append(snapshot.Peers, l)
		}
	}
	return snapshot
}
