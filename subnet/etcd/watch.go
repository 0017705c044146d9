package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// view is what is known of <prefix>/subnets/ at one revision.
type view struct {
	records map[string]record // by the key's last element
	rev     int64
	cluster uint64 // etcd's cluster id
}

// sorted returns the records, oldest first.
func (v view) sorted() []record {
	return slices.SortedFunc(maps.Values(v.records), func(a, b record) int {
		return cmp.Or(cmp.Compare(a.create, b.create), strings.Compare(a.name, b.name))
	})
}

func (s *Store) list(ctx context.Context) (*view, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.Get(ctx, s.dir, clientv3.WithPrefix())
	if err != nil {
		return nil, s.failed("list "+s.dir, err)
	}
	v := &view{records: make(map[string]record, len(resp.Kvs)), rev: resp.Header.Revision, cluster: resp.Header.ClusterId}
	for _, kv := range resp.Kvs {
		name := strings.TrimPrefix(string(kv.Key), s.dir)
		v.records[name] = readRecord(name, kv)
	}
	return v, nil
}

// Watch implements subnet.Store.
func (s *Store) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	retry := newBackoff()
	for {
		synced, err := s.follow(ctx, f)
		if ctx.Err() != nil {
			return nil
		}
		s.noteFailure()
		s.options.Report(err)
		if synced {
			retry.Reset()
		}
		if !loop.Sleep(ctx, retry.Next()) {
			return nil
		}
	}
}

// follow lists, and then watches from the list's revision until something breaks; it reports whether there was a
// snapshot. A compaction breaks it too: the next list is complete again.
func (s *Store) follow(ctx context.Context, f func(subnet.Snapshot)) (synced bool, err error) {
	client, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	v, err := s.list(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Without a leader a watch sends nothing and looks healthy.
	events := client.Watch(clientv3.WithRequireLeader(ctx), s.dir, clientv3.WithPrefix(), clientv3.WithRev(v.rev+1))
	tick := time.NewTicker(s.recheck)
	defer tick.Stop()
	for {
		if err := s.keep(ctx, v); err != nil {
			return synced, err
		}
		f(s.snapshot(v))
		synced = true
		if err := s.next(ctx, events, tick.C, v); err != nil {
			return synced, err
		}
	}
}

// next waits for a change of v. It takes the events that are there already together.
func (s *Store) next(ctx context.Context, events clientv3.WatchChan, tick <-chan time.Time, v *view) error {
	for changed := false; ; {
		select {
		case resp, ok := <-events:
			if !ok {
				return errors.New("watch leases: etcd ended the watch")
			}
			if err := resp.Err(); err != nil {
				return s.failed("watch "+s.dir, err)
			}
			changed = s.apply(v, resp) || changed
			continue
		default:
		}
		if changed {
			return nil
		}
		select {
		case resp, ok := <-events:
			if !ok {
				return errors.New("watch leases: etcd ended the watch")
			}
			if err := resp.Err(); err != nil {
				return s.failed("watch "+s.dir, err)
			}
			changed = s.apply(v, resp)
		case <-tick:
			if err := s.check(ctx, v); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Store) apply(v *view, resp clientv3.WatchResponse) bool {
	for _, e := range resp.Events {
		name := strings.TrimPrefix(string(e.Kv.Key), s.dir)
		if e.Type == clientv3.EventTypeDelete {
			delete(v.records, name)
		} else {
			v.records[name] = readRecord(name, e.Kv)
		}
	}
	v.rev = max(v.rev, resp.Header.Revision)
	return len(resp.Events) > 0
}

// check renews the own lease in time, and finds out whether etcd is still the one that is being watched: a
// watch on an etcd that was restored from a backup waits for a revision that is far in the future.
func (s *Store) check(ctx context.Context, v *view) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.Get(ctx, s.dir, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return s.failed("look at "+s.dir, err)
	}
	if err := sameEtcd(v, resp.Header); err != nil {
		return err
	}
	if own := s.own.Load(); own != nil && time.Now().After(own.renew) {
		return s.reclaim(ctx)
	}
	return nil
}

func sameEtcd(v *view, h *etcdserverpb.ResponseHeader) error {
	if h.ClusterId != v.cluster || h.Revision < v.rev {
		return fmt.Errorf("etcd was replaced or restored: cluster %x at revision %d became %x at %d",
			v.cluster, v.rev, h.ClusterId, h.Revision)
	}
	return nil
}

// keep claims the own record again if it is not as it was written. v may be older than the last Acquire; then claim
// finds nothing to do.
func (s *Store) keep(ctx context.Context, v *view) error {
	own := s.own.Load()
	if own == nil {
		return nil
	}
	r, ok := v.records[own.name]
	if ok && r.create == own.create && r.value == own.value && r.leaseID == int64(own.leaseID) {
		return nil
	}
	return s.reclaim(ctx)
}

func (s *Store) snapshot(v *view) (snapshot subnet.Snapshot) {
	own := s.own.Load()
	names := map[string]bool{}
	if own != nil {
		snapshot.Local = own.lease
		names[own.lease.Node] = true
	}
	for _, r := range v.sorted() {
		switch {
		case own != nil && r.name == own.name:
		case r.err != nil:
			snapshot.Skips = append(snapshot.Skips, subnet.Skip{Node: r.shown(), Code: subnet.Unreadable, Detail: r.err.Error()})
		case own != nil && sameNode(r.lease, own.lease):
			snapshot.Skips = append(snapshot.Skips, subnet.Skip{
				Node: r.shown(), Code: subnet.OwnAddress, Detail: "the record has this node's own public IP"})
		default:
			r.lease.Node = r.uniqueName(names)
			names[r.lease.Node] = true
			snapshot.Peers = append(snapshot.Peers, r.lease)
		}
	}
	return snapshot
}

// uniqueName returns a name for the record's node that no other peer has: two hosts called localhost are two peers,
// and so are two records of one address, the older of which belongs to nobody any more.
func (r record) uniqueName(names map[string]bool) string {
	for _, name := range []string{r.lease.Node, publicIP(r.lease)} {
		if !names[name] {
			return name
		}
	}
	return "subnets/" + r.name // a node's name has no slash
}

// sameNode reports whether two leases advertise the same address.
func sameNode(a, b subnet.Lease) bool {
	return slices.ContainsFunc(a.Stacks, func(s subnet.Stack) bool {
		o, ok := b.Stack(s.Family())
		return ok && o.Underlay == s.Underlay
	})
}
