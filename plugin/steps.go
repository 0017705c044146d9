package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// step is one thing that ADD does to the machine. do does it wholly or leaves nothing behind; undo takes it
// back and is never called unless do succeeded.
type step struct {
	do   func(context.Context) error
	undo func() error
}

// run does the steps in order. When one fails, or ctx is done, it takes back what was done, newest first: a
// runtime that never got a result may never send a DEL.
func run(ctx context.Context, steps []step) (err error) {
	done := 0
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug in twill: %v", r)
		}
		if err != nil {
			err = withRollback(err, undo(steps[:done]))
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

// withRollback is err, and what is left over because it could not be taken back. The code of err stays.
func withRollback(err, left error) error {
	if left == nil {
		return err
	}
	var coded *types.Error
	if errors.As(err, &coded) {
		return types.NewError(coded.Code, coded.Msg, left.Error())
	}
	return errors.Join(err, left)
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
