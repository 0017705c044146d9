package ipam

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// Grant is an address that a pod got.
type Grant struct {
	Prefix  netip.Prefix // with the subnet's length
	Gateway netip.Addr
}

// Allocate reserves an address of every range set for o, or none. Those in wanted are taken where they are in a set.
func (s Store) Allocate(ctx context.Context, o Owner, sets []RangeSet, wanted []netip.Addr) ([]Grant, error) {
	want, err := assign(sets, wanted)
	if err != nil {
		return nil, err
	}
	lock, err := s.Lock(ctx)
	if err != nil {
		return nil, cnierr.New(types.ErrIOFailure, "reserve an address: %v", err)
	}
	defer lock.Close()
	var grants []Grant
	for i, set := range sets {
		g, err := s.take(ctx, o, i, set, want[i])
		if err != nil {
			return nil, cnierr.Join(err, s.releaseLocked(o, Addrs(grants), s.indexed(o)))
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
		if i < 0 {
			return nil, cnierr.New(types.ErrInvalidNetworkConfig, "address %s was asked for: want one of %s", a, SetsString(sets))
		}
		if want[i].IsValid() {
			return nil, cnierr.New(types.ErrInvalidNetworkConfig, "addresses %s and %s were asked for: want at most one of %s",
				want[i], a, sets[i])
		}
		want[i] = a
	}
	return want, nil
}

// take reserves the wanted address of set i for o, or if that is invalid the first free one.
func (s Store) take(ctx context.Context, o Owner, i int, set RangeSet, wanted netip.Addr) (Grant, error) {
	candidates := set.after(s.last(i))
	if wanted.IsValid() {
		candidates = func(yield func(Range, netip.Addr) bool) { yield(set[set.find(wanted)], wanted) }
	}
	pending, err := s.prepare(o, i)
	if err != nil {
		return Grant{}, s.failure(err)
	}
	g, err := s.first(ctx, pending, candidates)
	switch {
	case err != nil:
		err = s.failure(err)
	case g.Prefix.IsValid():
		s.setLast(i, g.Prefix.Addr())
		return g, nil
	case ctx.Err() != nil:
		err = errors.New("stopped by a signal before an address was free")
	case wanted.IsValid():
		err = cnierr.New(types.ErrTryAgainLater, "address %s was asked for and is reserved in %s: "+
			"remove the pod that has it or ask for another", wanted, s)
	default:
		err = s.full(types.ErrTryAgainLater, set)
	}
	return Grant{}, cnierr.Join(err, Absent(os.Remove(pending)))
}

// manyTaken is how many addresses are tried one by one before the directory is read: one listing costs as much as some
// thousand tries.
const manyTaken = 200

// first links pending to the first candidate that is free, and returns no grant if there is none. Where many in a row
// are not, it passes over those that the directory lists; only when all are listed it tries each, for an empty file is
// free.
func (s Store) first(ctx context.Context, pending string, candidates iter.Seq2[Range, netip.Addr]) (Grant, error) {
	listed, tried, neighbours := map[netip.Addr]bool{}, 0, s.Neighbours()
	for _, onlyListed := range []bool{false, true} {
		for r, a := range candidates {
			if listed[a] != onlyListed {
				continue
			}
			free, err := s.reserve(pending, a, neighbours)
			if err != nil || free {
				return Grant{r.WithLength(a), r.Gateway}, err
			}
			if ctx.Err() != nil {
				return Grant{}, nil
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

// Room returns an error if one of the sets has no free address, which says how full it is.
func (s Store) Room(sets []RangeSet) error {
	used := make([]int, len(sets))
	var errs []error
	for _, store := range append(s.Neighbours(), s) {
		errs = append(errs, store.each(func(a netip.Addr, content []byte) {
			for i, set := range sets {
				if len(content) > 0 && set.find(a) >= 0 {
					used[i]++
				}
			}
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return cnierr.New(types.ErrPluginNotAvailable, "read the reservations in %s: %v", s, err)
	}
	for i, set := range sets {
		if !set.holdsMoreThan(used[i]) {
			return s.full(types.ErrPluginNotAvailable, set)
		}
	}
	return nil
}

func (s Store) full(code uint, set RangeSet) error {
	count := 0
	for range set.after(netip.Addr{}) {
		count++
	}
	return cnierr.New(code, "all %d addresses of %s are reserved in %s: "+
		"remove pods from this node or give its lease a larger subnet", count, set, s)
}

// Release gives back whatever o has. known are addresses that it probably has: when it had them all, and the index has
// no more of it, there is nothing more to look for. Otherwise the store is searched, first without the lock, so that the
// usual second DEL of a pod never waits for anybody.
func (s Store) Release(ctx context.Context, o Owner, known []netip.Addr) error {
	entries := s.indexed(o)
	found := slices.DeleteFunc(slices.Clone(known), func(a netip.Addr) bool {
		has, err := s.Has(o, a)
		return err != nil || !has
	})
	if len(known) == 0 || len(found) < len(known) || len(entries) > len(found) {
		var err error
		found, entries, err = s.search(o)
		if err != nil || len(found)+len(entries) == 0 {
			return err
		}
	}
	lock, err := s.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	return s.releaseLocked(o, found, entries)
}

// releaseLocked gives addresses of o back and removes entries of the index.
func (s Store) releaseLocked(o Owner, addrs []netip.Addr, entries []string) error {
	var errs []error
	for _, a := range addrs {
		errs = append(errs, s.release(o, a))
	}
	for _, path := range entries {
		errs = append(errs, Absent(os.Remove(path)))
	}
	return errors.Join(errs...)
}

// Addrs returns the addresses of grants.
func Addrs(grants []Grant) (all []netip.Addr) {
	for _, g := range grants {
		all = append(all, g.Prefix.Addr())
	}
	return all
}
