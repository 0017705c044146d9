package ipam

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// Grant is an address that a pod got.
type Grant struct {
	Prefix  netip.Prefix // with the subnet's length
	Gateway netip.Addr
}

// Allocate reserves an address of every range set for o, or none. Those in wanted are taken where they are in
// a set. What inUse has is taken, even without a reservation: it says by whom.
func (s Store) Allocate(ctx context.Context, o Owner, sets []RangeSet, wanted []netip.Addr, inUse map[netip.Addr]string) (
	[]Grant, error) {
	want, err := assign(sets, wanted)
	if err != nil {
		return nil, err
	}
	lock, err := s.Lock(ctx)
	if err != nil {
		return nil, cnierr.New(cnierr.Code(err), "reserve an address: %v", err)
	}
	defer lock.Close()
	var grants []Grant
	t := taken{s.Neighbours(), inUse}
	for i, set := range sets {
		g, err := s.take(ctx, o, i, set, want[i], t)
		if err != nil {
			for j, g := range grants {
				undone := errors.Join(s.release(o, g.Prefix.Addr()), Absent(os.Remove(s.indexFile(o, strconv.Itoa(j)))))
				err = cnierr.Join(err, undone)
			}
			return nil, err
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// assign returns the wanted address of each range set, invalid where none is wanted.
func assign(sets []RangeSet, wanted []netip.Addr) ([]netip.Addr, error) {
	want := make([]netip.Addr, len(sets))
	for _, a := range wanted {
		i := slices.IndexFunc(sets, func(s RangeSet) bool { return s.offers(a) })
		if i < 0 && slices.ContainsFunc(sets, func(s RangeSet) bool { return s.find(a) >= 0 }) {
			return nil, cnierr.New(types.ErrInvalidNetworkConfig, "address %s was asked for: it is the gateway's, want another one of %s",
				a, SetsString(sets))
		}
		if i < 0 {
			return nil, cnierr.New(types.ErrInvalidNetworkConfig, "address %s was asked for: want one of %s",
				a, SetsString(sets))
		}
		if want[i].IsValid() {
			return nil, cnierr.New(types.ErrInvalidNetworkConfig, "addresses %s and %s were asked for: want at most one of %s",
				want[i], a, sets[i])
		}
		want[i] = a
	}
	return want, nil
}

// taken says which addresses are, beside those that the store has.
type taken struct {
	stores []Store
	inUse  map[netip.Addr]string // by whom
}

// take reserves the wanted address of set i for o, or if that is invalid the first free one.
func (s Store) take(ctx context.Context, o Owner, i int, set RangeSet, wanted netip.Addr, others taken) (
	Grant, error) {
	pending, err := s.prepare(o, i)
	if err != nil {
		return Grant{}, s.failure(err)
	}
	candidates := set.after(s.last(i))
	if wanted.IsValid() {
		candidates = func(yield func(Range, netip.Addr) bool) { yield(set[set.find(wanted)], wanted) }
	}
	g, err := s.first(ctx, pending, candidates, others)
	if err == nil && g.Prefix.IsValid() {
		s.setLast(i, g.Prefix.Addr())
		return g, nil
	}
	if by := others.inUse[wanted]; err == nil && by != "" {
		err = cnierr.New(types.ErrTryAgainLater, "address %s was asked for and is in use at %s: "+
			"remove the pod that has it or ask for another", wanted, by)
	} else if err == nil && wanted.IsValid() {
		err = cnierr.New(types.ErrTryAgainLater, "address %s was asked for and is reserved in %s: "+
			"remove the pod that has it or ask for another", wanted, s)
	} else if err == nil {
		err = s.full(types.ErrTryAgainLater, set)
	}
	return Grant{}, cnierr.Join(s.failure(err), Absent(os.Remove(pending)))
}

// manyTaken is how many addresses are tried one by one before the directory is read: one listing costs as
// much as some thousand tries.
const manyTaken = 200

// first links pending to the first candidate that is free, and returns no grant if there is none. Where many
// in a row are not, it skips those that the directory lists; only when all are listed it tries each, for an
// empty file is free.
func (s Store) first(ctx context.Context, pending string, candidates iter.Seq2[Range, netip.Addr], others taken) (
	Grant, error) {
	listed, tried := map[netip.Addr]bool{}, 0
	for _, onlyListed := range []bool{false, true} {
		for r, a := range candidates {
			if listed[a] != onlyListed || others.inUse[a] != "" {
				continue
			}
			free, err := s.reserve(pending, a, others.stores)
			if err != nil || free {
				return Grant{r.WithLength(a), r.Gateway}, err
			}
			if ctx.Err() != nil {
				return Grant{}, cnierr.New(types.ErrInternal, "stopped by a signal before an address was free")
			}
			if tried++; tried == manyTaken {
				all, err := s.addrs()
				if err != nil {
					return Grant{}, err
				}
				for _, a := range all {
					listed[a] = true
				}
			}
		}
	}
	return Grant{}, nil
}

func (s Store) failure(err error) error {
	if cnierr.Code(err) != 0 {
		return err
	}
	return cnierr.New(types.ErrIOFailure, "reserve an address in %s: %v", s, err)
}

// Usage is how many of a set's addresses are in use.
type Usage struct {
	Set       RangeSet
	Used, All int
}

// Usage counts for each set the addresses that pods can have, and those that are in use here or in a store beside this one.
func (s Store) Usage(sets []RangeSet) ([]Usage, error) {
	used := map[netip.Addr]bool{}
	var errs []error
	for _, store := range append(s.Neighbours(), s) {
		errs = append(errs, store.each(func(a netip.Addr, _ Owner) { used[a] = true }))
	}
	all := make([]Usage, len(sets))
	for i, set := range sets {
		all[i] = Usage{Set: set, All: set.size()}
		for a := range used {
			if set.offers(a) {
				all[i].Used++
			}
		}
	}
	return all, errors.Join(errs...)
}

// SubnetUsage is Usage of a node's subnets, as pods get their addresses where the CNI config names no ranges.
func (s Store) SubnetUsage(subnets []netip.Prefix) ([]Usage, error) {
	var sets []RangeSet
	for _, subnet := range subnets {
		r, err := NewRange(subnet, netip.Addr{}, netip.Addr{}, netip.Addr{})
		if err != nil {
			return nil, err
		}
		sets = append(sets, RangeSet{r})
	}
	return s.Usage(sets)
}

func (s Store) full(code uint, set RangeSet) error {
	return cnierr.New(code, "all %d addresses of %s are reserved in %s: "+
		"remove pods from this node or give its lease a larger subnet", set.size(), set, s)
}

// Release gives back whatever o has, and returns which addresses that was. known are addresses that it probably has: when it had them all, and the
// index has no more of it, there is nothing more to look for. Otherwise the store is searched, first without
// the lock, so that the usual second DEL of a pod never waits for anybody.
func (s Store) Release(ctx context.Context, o Owner, known []netip.Addr) (released []netip.Addr, err error) {
	entries := s.indexed(o)
	found := slices.DeleteFunc(slices.Clone(known), func(a netip.Addr) bool {
		return !s.Has(o, a)
	})
	if len(known) == 0 || len(found) < len(known) || len(entries) > len(found) {
		found, entries, err = s.search(o)
		if err != nil || len(found)+len(entries) == 0 {
			return nil, err
		}
	}
	lock, err := s.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	var errs []error
	for _, a := range found {
		err := s.release(o, a)
		if err == nil {
			released = append(released, a)
		}
		errs = append(errs, err)
	}
	for _, path := range entries {
		errs = append(errs, Absent(os.Remove(path)))
	}
	return released, errors.Join(errs...)
}
