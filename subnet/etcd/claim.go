package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// errConflict is the error for a record that somebody changed after it was listed. The next attempt lists again.
var errConflict = errors.New("the record was changed meanwhile")

// maxConflicts is how many of them in a row end an attempt.
const maxConflicts = 10

// claim publishes want in a record of etcd, and makes that s.own.
func (s *Store) claim(ctx context.Context, want subnet.Lease) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.claimLocked(ctx, want)
}

// reclaim writes s.own to etcd again. It reads s.own only under the lock: before, an Acquire may be about to replace
// it.
func (s *Store) reclaim(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.claimLocked(ctx, s.own.Load().lease)
}

func (s *Store) lock(ctx context.Context) error {
	select {
	case s.claiming <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) unlock() { <-s.claiming }

func (s *Store) claimLocked(ctx context.Context, want subnet.Lease) error {
	if s.pools == nil {
		config, err := s.Config(ctx)
		if err != nil {
			return err
		}
		s.pools = config.Pools
	}
	if err := subnet.Match(s.pools, want); err != nil {
		return err
	}
	for range maxConflicts {
		if err := s.attempt(ctx, want); !errors.Is(err, errConflict) {
			return err
		}
	}
	return outageError{fmt.Errorf("claim a subnet below %s: lost %d races in a row", s.dir, maxConflicts)}
}

func (s *Store) attempt(ctx context.Context, want subnet.Lease) error {
	v, err := s.list(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	records := v.sorted()
	have, ok := s.held(records, want)
	if ok && s.usable(have) {
		return s.refresh(ctx, have, want)
	}
	return s.create(ctx, records, have, want)
}

// held returns the record that this Store made, or else the one in etcd that is want's.
func (s *Store) held(records []record, want subnet.Lease) (record, bool) {
	own := s.own.Load()
	if own == nil {
		return prefer(find(records, want), s.usable)
	}
	for _, r := range records {
		// Whoever altered our record did not make it his; whoever made a new one did.
		if r.name == own.name && r.create == own.create {
			return r, true
		}
	}
	return prefer(byAddress(records, want), s.usable)
}

// usable reports whether this node may keep r's subnets: the pools are for new leases.
func (s *Store) usable(r record) bool {
	if len(r.subnets) != len(s.pools) {
		return false
	}
	for i, p := range s.pools {
		if !p.Keeps(r.subnets[i]) || s.Check(r.subnets[i]) != nil {
			return false
		}
	}
	return true
}

// refresh writes want into have, which is this node's.
func (s *Store) refresh(ctx context.Context, have record, want subnet.Lease) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	next, err := own(with(want, have.subnets))
	if err != nil {
		return err
	}
	next.create, next.leaseID = have.create, clientv3.LeaseID(have.leaseID)
	if was := s.own.Load(); was != nil && was.name == have.name && next.leaseID == 0 && have.value != was.value {
		// A put without a lease takes the lease away. With the same value somebody made this a reservation;
		// with another one it was an accident.
		next.leaseID = was.leaseID
	}
	if next.leaseID != 0 {
		if next.leaseID, err = s.alive(ctx, client, next.leaseID); err != nil {
			return err
		}
	}
	if have.value != next.value || have.leaseID != int64(next.leaseID) {
		key := s.dir + have.name
		resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", have.mod)).
			Then(clientv3.OpPut(key, next.value, clientv3.WithLease(next.leaseID))).Commit()
		if err != nil {
			return s.failed("write "+key, err)
		}
		if !resp.Succeeded {
			return errConflict
		}
	}
	s.hold(next)
	return nil
}

// create claims new subnets for want, and deletes old, if that is a record of this node with other subnets.
func (s *Store) create(ctx context.Context, records []record, old record, want subnet.Lease) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	got, err := subnet.Allocate(s.pools, s.preferred(want, old), append(s.used(records, old.name), s.Excluded(s.pools)...))
	if err != nil {
		return s.Explain(err)
	}
	last := old.lease
	if was := s.own.Load(); old.err != nil && was != nil && was.name == old.name {
		last = was.lease // somebody damaged the record, and the pods are still there
	}
	next, err := own(got.After(last))
	if err != nil {
		return err
	}
	if next.leaseID, err = s.grant(ctx, client); err != nil {
		return err
	}
	key := s.dir + next.name
	ops := []clientv3.Op{clientv3.OpPut(key, next.value, clientv3.WithLease(next.leaseID))}
	if old.name != "" && old.leaseID != 0 {
		ops = append(ops, clientv3.OpDelete(s.dir+old.name))
	}
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), "=", 0)).Then(ops...).Commit()
	if err != nil {
		return s.failed("claim "+key, err)
	}
	if !resp.Succeeded {
		s.revoke(ctx, client, next.leaseID)
		return errConflict
	}
	next.create = resp.Header.Revision
	return s.confirm(ctx, client, next)
}

// confirm checks that nobody claimed an overlapping subnet under another key in the same moment, which the transaction
// cannot see: 10.5.1.0-24 and 10.5.1.0-24&fc00::-64 are different keys, and one of before has none. The older record
// holds. An older one of the node itself is a reservation that lacks a family.
func (s *Store) confirm(ctx context.Context, client *clientv3.Client, next *owned) error {
	v, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, r := range v.records {
		older := r.create < next.create && r.name != next.name
		if older && overlap(s.taken(r), next.lease) && !sameNode(r.lease, next.lease) {
			s.revoke(ctx, client, next.leaseID) // and with it the key
			return errConflict
		}
	}
	s.hold(next)
	return nil
}

func overlap(subnets []netip.Prefix, l subnet.Lease) bool {
	return slices.ContainsFunc(l.Stacks, func(s subnet.Stack) bool {
		return slices.ContainsFunc(subnets, s.Subnet.Overlaps)
	})
}

// preferred returns want with the best subnets to ask for: those that this Store held, of its old record, or want's.
func (s *Store) preferred(want subnet.Lease, old record) subnet.Lease {
	stacks := slices.Clone(want.Stacks)
	for i := range stacks {
		for _, o := range old.subnets {
			if netstate.FamilyOf(o.Addr()) == stacks[i].Family() && s.pools[i].Keeps(o) {
				stacks[i].Subnet = o
			}
		}
		if was := s.own.Load(); was != nil {
			stacks[i].Subnet = was.lease.Stacks[i].Subnet
		}
	}
	want.Stacks = stacks
	return want
}

// used returns the subnets of all records but one, with those of before.
func (s *Store) used(records []record, but string) (subnets []netip.Prefix) {
	for _, r := range records {
		if r.name != but {
			subnets = append(subnets, s.taken(r)...)
		}
	}
	return subnets
}

// taken returns the subnets that a record claims, and those of before that it names.
func (s *Store) taken(r record) []netip.Prefix {
	return slices.Concat(r.subnets, r.lease.EarlierIn(s.pools))
}

// with returns want with the subnets.
func with(want subnet.Lease, subnets []netip.Prefix) subnet.Lease {
	stacks := slices.Clone(want.Stacks)
	for i := range stacks {
		stacks[i].Subnet = subnets[i]
	}
	want.Stacks = stacks
	return want
}

func own(l subnet.Lease) (*owned, error) {
	value, err := formatValue(l)
	return &owned{lease: l, name: formatName(l), value: value}, err
}

// hold makes next the record that Watch keeps.
func (s *Store) hold(next *owned) {
	now := time.Now()
	next.renew = now.Add(s.ttl - min(s.options.RenewMargin, s.ttl/2))
	if next.leaseID != 0 {
		next.ends = now.Add(s.ttl)
	}
	s.unrenewed.Store(0)
	s.own.Store(next)
}

// Renewal implements subnet.Renewer.
func (s *Store) Renewal() (ends time.Time, failed int) {
	own := s.own.Load()
	if own == nil {
		return time.Time{}, 0
	}
	return own.ends, int(s.unrenewed.Load())
}

// noteFailure counts an attempt of Watch that failed, if the lease was to be renewed by it.
func (s *Store) noteFailure() {
	if own := s.own.Load(); own != nil && !own.ends.IsZero() && time.Now().After(own.renew) {
		s.unrenewed.Add(1)
	}
}

func (s *Store) grant(ctx context.Context, client *clientv3.Client) (clientv3.LeaseID, error) {
	resp, err := client.Grant(ctx, int64(s.ttl.Seconds()))
	if err != nil {
		return 0, s.failed("grant a lease", err)
	}
	return resp.ID, nil
}

// alive renews the etcd lease, or replaces it by a new one if it is over.
func (s *Store) alive(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) (clientv3.LeaseID, error) {
	_, err := client.KeepAliveOnce(ctx, id)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return s.grant(ctx, client)
	case err != nil:
		return 0, s.failed("renew the lease", err)
	}
	return id, nil
}

// revoke is best effort: a lease that stays holds nothing, and ends by itself.
func (s *Store) revoke(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) {
	if _, err := client.Revoke(ctx, id); err != nil {
		s.options.Report(s.failed("revoke a lease that lost a race", err))
	}
}
