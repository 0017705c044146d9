package kube

import (
	"context"
	"errors"
	"fmt"

	"github.com/twill-net/twill/internal/kubeclient"
)

// The tasks that Options.Waiting is called with.
const (
	taskName    = "find the node's name"
	taskAcquire = "acquire the lease"
	taskWatch   = "watch nodes"
	taskRead    = "read nodes"

	taskWatchLeases = "watch Lease objects"
	taskLeases      = "take leases from Lease objects"
	taskPublish     = "publish the lease"
	taskObjects     = "publish Lease objects"
	taskNetwork     = "set NetworkUnavailable"
	taskReached     = "set TwillPeersReached"
	taskEvent       = "record an event"
	taskCompare     = "compare what the API server says of this node"
)

// retry repeats do until it succeeds, its error is one that waiting does not mend, or ctx is done.
func (s *Store) retry(ctx context.Context, task string, do func() error) error {
	var last error
	err := kubeclient.Backoff().DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		last = do()
		if kubeclient.IsTerminal(last) || isWait(last) {
			return false, last
		}
		if ctx.Err() == nil || last == nil {
			s.progress.Report(task, last)
		}
		return last == nil, nil
	})
	if err == nil || errors.Is(err, last) {
		return err
	}
	return timeoutError(ctx, task, last)
}

// timeoutError is the error of a task that ctx ended, which is about ctx first and about the last attempt second.
func timeoutError(ctx context.Context, task string, last error) error {
	if errors.Is(last, ctx.Err()) {
		return fmt.Errorf("%s: %w", task, last)
	}
	return fmt.Errorf("%s: %w; the last attempt: %w", task, ctx.Err(), last)
}
