package plugin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// grant is an address that a pod got.
type grant struct {
	prefix  netip.Prefix // with the subnet's length
	gateway netip.Addr
}

// request is what allocate is asked for: an address of every range set, of those in wanted where they are in it.
type request struct {
	sets   []rangeSet
	wanted []netip.Addr
}

// allocate reserves one address of every range set for o, or none.
func (r request) allocate(ctx context.Context, dir string, o owner) ([]grant, error) {
	wanted, err := r.assign()
	if err != nil {
		return nil, err
	}
	s, err := lockStore(ctx, dir)
	if err != nil {
		return nil, failure(types.ErrIOFailure, "reserve an address: %v", err)
	}
	defer s.close()
	var grants []grant
	for i, set := range r.sets {
		g, err := s.take(ctx, i, set.candidates(s.last(i), wanted[i]), o)
		if err != nil {
			return nil, withRollback(err, s.giveBack(o, grants))
		}
		if !g.prefix.IsValid() {
			return nil, withRollback(r.noneFree(ctx, i, wanted[i], dir), s.giveBack(o, grants))
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// assign gives each wanted address to the range set that it is in.
func (r request) assign() (map[int]netip.Addr, error) {
	wanted := map[int]netip.Addr{}
	for _, a := range r.wanted {
		i := slices.IndexFunc(r.sets, func(s rangeSet) bool { return s.offers(a) })
		if i < 0 {
			return nil, failure(types.ErrInvalidNetworkConfig, "address %s was asked for: want one of %s", a, setsText(r.sets))
		}
		if other, taken := wanted[i]; taken {
			return nil, failure(types.ErrInvalidNetworkConfig, "addresses %s and %s were asked for: want at most one of %s", other, a, r.sets[i])
		}
		wanted[i] = a
	}
	return wanted, nil
}

// noneFree is why set i gave nothing.
func (r request) noneFree(ctx context.Context, i int, wanted netip.Addr, dir string) error {
	switch {
	case ctx.Err() != nil:
		return errors.New("stopped by a signal before an address was free")
	case wanted.IsValid():
		return failure(types.ErrTryAgainLater, "address %s was asked for and is reserved in %s: "+
			"remove the pod that has it or ask for another", wanted, dir)
	}
	count := 0
	r.sets[i].next(netip.Addr{}, func(addrRange, netip.Addr) bool { count++; return false })
	return failure(types.ErrTryAgainLater, "all %d addresses of %s are reserved in %s: "+
		"remove pods from this node or give its lease a larger subnet", count, r.sets[i], dir)
}

// take reserves the first of the candidates that is free, and gives no grant if there is none.
func (s *store) take(ctx context.Context, i int, candidates iter.Seq2[addrRange, netip.Addr], o owner) (grant, error) {
	draft, err := s.draft(o, i)
	if err != nil {
		return grant{}, storeFailure(s.dir, err)
	}
	g, err := s.first(ctx, candidates, draft)
	if err != nil {
		return grant{}, withRollback(storeFailure(s.dir, err), absent(os.Remove(draft)))
	}
	if !g.prefix.IsValid() {
		return grant{}, absent(os.Remove(draft))
	}
	// Without it the round only begins again at the start: never a reason to refuse a pod.
	_ = s.setLast(i, g.prefix.Addr())
	return g, nil
}

// manyTaken is how many addresses are tried one by one before the directory is read: one listing costs as much as
// some thousand tries.
const manyTaken = 200

// first links the draft to the first candidate that is free. Where many in a row are not, it passes over those that
// the directory lists; only when all are listed it tries each, for an empty file is free.
func (s *store) first(ctx context.Context, candidates iter.Seq2[addrRange, netip.Addr], draft string) (grant, error) {
	var listed map[netip.Addr]bool
	tried := 0
	for r, a := range candidates {
		if listed[a] {
			continue
		}
		free, err := s.reserve(draft, a)
		if err != nil || free {
			return grant{r.prefix(a), r.gateway}, err
		}
		if ctx.Err() != nil {
			return grant{}, nil
		}
		if tried++; tried == manyTaken {
			if listed, err = s.listed(); err != nil {
				return grant{}, err
			}
		}
	}
	for r, a := range candidates {
		if !listed[a] || ctx.Err() != nil {
			continue
		}
		free, err := s.reserve(draft, a)
		if err != nil || free {
			return grant{r.prefix(a), r.gateway}, err
		}
	}
	return grant{}, nil
}

// listed is the addresses that have a file.
func (s *store) listed() (map[netip.Addr]bool, error) {
	all := map[netip.Addr]bool{}
	err := entries(s.dir, func(_ uint64, name string) {
		if a, err := netip.ParseAddr(name); err == nil {
			all[a] = true
		}
	})
	return all, err
}

func storeFailure(dir string, err error) error {
	var coded *types.Error
	if errors.As(err, &coded) {
		return err
	}
	return failure(types.ErrIOFailure, "reserve an address in %s: %v", dir, err)
}

func setsText(sets []rangeSet) string {
	text := ""
	for i, s := range sets {
		text += state(i > 0, ", ", "") + s.String()
	}
	return text
}

func (s rangeSet) String() string {
	text := ""
	for _, r := range s {
		if text != "" {
			text += " and "
		}
		text += fmt.Sprintf("%s (%s to %s)", r.subnet, r.first, r.last)
	}
	return text
}

func (s *store) giveBack(o owner, grants []grant) error {
	var errs []error
	for _, g := range grants {
		_, err := s.release(o, g.prefix.Addr())
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.undraft(o, len(grants)))...)
}

// free takes grants back under the lock, even after a signal.
func free(dir string, o owner, grants []grant) error {
	s, err := lockStore(context.Background(), dir)
	if err != nil {
		return err
	}
	defer s.close()
	return s.giveBack(o, grants)
}

// releaseAll gives back whatever o has. known are addresses that it probably has: when it had them all, and the index has
// no more of it, there is nothing more to look for. Otherwise the store is searched, first without the lock, so that the
// usual second DEL of a pod never waits for anybody.
func releaseAll(ctx context.Context, dir string, o owner, known []netip.Addr) error {
	found, searched := owned(dir, o, known), false
	if len(known) == 0 || len(found) < len(known) || (&store{dir: dir}).drafts(o) > len(found) {
		var indexed bool
		var err error
		found, indexed, err = (&store{dir: dir}).search(o)
		if err != nil || len(found) == 0 && !indexed {
			return err
		}
		searched = true
	}
	s, err := lockStore(ctx, dir)
	if err != nil {
		return err
	}
	defer s.close()
	var errs []error
	for _, a := range found {
		_, err := s.release(o, a)
		errs = append(errs, err)
	}
	errs = append(errs, s.undraft(o, -1))
	if searched {
		errs = append(errs, s.forgetIndex(o))
	}
	return errors.Join(errs...)
}

// owned is those of addrs that o has.
func owned(dir string, o owner, addrs []netip.Addr) []netip.Addr {
	s := &store{dir: dir}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		content, err := os.ReadFile(s.path(a))
		return err != nil || !o.owns(content)
	})
}
