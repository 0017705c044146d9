package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// step is one thing that ADD does to the machine. do does it wholly or leaves nothing behind; undo is never
// called unless do succeeded.
type step struct {
	do   func(context.Context) error
	undo func() error
}

// run does the steps in order. When one fails, or ctx is done, it undoes what was done, newest first: a
// runtime that never got a result may never send a DEL.
func run(ctx context.Context, steps []step) (err error) {
	done := 0
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug in twill: %v", r)
		}
		if err != nil {
			err = cnierr.Join(err, undo(steps[:done]))
		}
	}()
	for _, s := range steps {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped by a signal before the pod was wired")
		}
		if err := s.do(ctx); err != nil {
			return err
		}
		done++
	}
	return nil
}

func undo(steps []step) error {
	var errs []error
	for _, s := range slices.Backward(steps) {
		if s.undo == nil {
			continue
		}
		if err := s.undo(); err != nil {
			errs = append(errs, fmt.Errorf("roll back: %w", err))
		}
	}
	return errors.Join(errs...)
}
