package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// permitted returns the changes that may be made. A lease of an earlier run may be somebody else's by now: until the store has
// answered, no route that works is taken or deleted for it.
func (k *keeper) permitted(changes []Change) []Change {
	k.withheld = false
	return slices.DeleteFunc(changes, func(c Change) bool {
		hold := !k.view.Synced && (c.Op == Delete || isTaking(c, k.self))
		k.withheld = k.withheld || hold
		return hold
	})
}

// write makes changes. One that fails keeps no other route from being made, as that in another table, but keeps all from being
// deleted, which come last.
func (k *keeper) write(ctx context.Context, changes []Change) (wrote bool, failed error) {
	for _, c := range changes {
		if failed != nil && c.Op == Delete {
			break
		}
		err := k.change(ctx, c)
		switch {
		case err == nil:
			wrote = true
		case failed == nil:
			failed = err
		default:
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		if errors.Is(err, ErrThrottled) || ctx.Err() != nil {
			break
		}
	}
	return wrote, failed
}

// change makes a change that is not contended.
func (k *keeper) change(ctx context.Context, c Change) error {
	if k.disputes.isContended(c, k.self, time.Now()) {
		return fmt.Errorf("%s: %w", c, errDisputed)
	}
	if err := k.apply(ctx, c); err != nil {
		return err
	}
	k.disputes.note(c, k.self, time.Now())
	return nil
}

// apply makes a change.
func (k *keeper) apply(ctx context.Context, c Change) error {
	if err := k.call(ctx); err != nil {
		return err
	}
	k.Log.Info("write a route of the cloud", "change", c.String())
	err := k.Cloud.Apply(ctx, k.self, c)
	if err != nil && (c.Op != Delete || !errors.Is(err, ErrGone)) {
		return fmt.Errorf("%s: %w", c, err)
	}
	k.health.Writes++
	k.wrote[key(c.Route)] = write{c, time.Now()}
	return nil
}

// isFresh reports whether a change is one that was made just now: the tables that were read are older.
func (k *keeper) isFresh(c Change) bool {
	w, ok := k.wrote[key(c.Route)]
	return ok && time.Since(w.at) < lag && w.change.Op.result() == c.Op.result()
}

// result reports whether there is a route after the operation.
func (o Op) result() bool { return o != Delete }

// key names a route. The target is part of it, because a table may have several routes to one prefix.
func key(r Route) string { return r.Table + " " + r.Dst.String() + " " + r.Target }
