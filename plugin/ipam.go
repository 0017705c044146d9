package plugin

import (
	"context"
	"errors"
	"fmt"
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

// allocate reserves one address of every range set for o, or none.
func allocate(ctx context.Context, dir string, sets []rangeSet, o owner) ([]grant, error) {
	s, err := lockStore(ctx, dir)
	if err != nil {
		return nil, failure(types.ErrIOFailure, "reserve an address: %v", err)
	}
	defer s.close()
	var grants []grant
	for i, set := range sets {
		g, err := s.take(ctx, i, set, o)
		if err != nil {
			return nil, errors.Join(err, s.giveBack(o, grants))
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// take reserves the next free address of range set i.
func (s *store) take(ctx context.Context, i int, set rangeSet, o owner) (g grant, err error) {
	tried := 0
	set.next(s.last(i), func(r addrRange, a netip.Addr) bool {
		tried++
		free := false
		if free, err = s.reserve(o, a); free {
			g = grant{r.prefix(a), r.gateway}
		}
		return free || err != nil || ctx.Err() != nil
	})
	switch {
	case err != nil:
		return grant{}, failure(types.ErrIOFailure, "reserve an address in %s: %v", s.dir, err)
	case g.prefix.IsValid():
		// Without it the round only begins again at the start: never a reason to refuse a pod.
		_ = s.setLast(i, g.prefix.Addr())
		return g, nil
	case ctx.Err() != nil:
		return grant{}, errors.New("stopped by a signal before an address was free")
	}
	return grant{}, full(set, tried, s.dir)
}

func full(set rangeSet, tried int, dir string) error {
	return failure(types.ErrTryAgainLater, "all %d addresses of %s are reserved in %s: "+
		"remove pods from this node or give its lease a larger subnet", tried, set, dir)
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
	return errors.Join(errs...)
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

// releaseAll gives back whatever o has. known are addresses that it probably has: when it had them all there is
// nothing more to look for. Without them every file is read, first without the lock, so that the usual second
// DEL of a pod never waits for anybody.
func releaseAll(ctx context.Context, dir string, o owner, known []netip.Addr) error {
	found := owned(dir, o, known)
	if len(known) == 0 || len(found) < len(known) {
		var err error
		if found, err = search(dir, o); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		return nil
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

// search is every address that o has. Files of the old form, with the container id only, count where there is
// none of the new form: that is host-local's rule.
func search(dir string, o owner) ([]netip.Addr, error) {
	var exact, old []netip.Addr
	err := (&store{dir: dir}).each(func(a netip.Addr, content []byte) {
		switch in := parseOwner(content); {
		case !o.owns(content):
		case in.dev == "":
			old = append(old, a)
		default:
			exact = append(exact, a)
		}
	})
	if len(exact) > 0 {
		return exact, err
	}
	return old, err
}
