package kube

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
)

// keep writes this node's lease and condition again whenever the Node object does not say them, until ctx is
// done. Five repairs are made at once, then one a second: somebody may be writing against us.
func (s *Store) keep(ctx context.Context, c *nodes) {
	limit := rate.NewLimiter(rate.Every(time.Second), 5)
	again := backoff{least: 200 * time.Millisecond, most: 10 * time.Second}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.own.kick:
		case <-retry:
		}
		c.mark() // the lease in the snapshot may be another one
		retry = nil
		if r, ok := c.ownRecord(); ok {
			if errors.Join(s.keepLease(ctx, r, limit), s.keepNetwork(ctx, r, limit)) != nil {
				retry = time.After(again.step())
			} else {
				again.reset()
			}
		}
	}
}

// keepLease returns an error if it is to be called again although the node does not change.
func (s *Store) keepLease(ctx context.Context, r record, limit *rate.Limiter) error {
	want, _ := s.own.wanted()
	if want == nil {
		return nil
	}
	l, err := s.local(*want, r)
	if errors.Is(err, errNoPodCIDR) && s.claimSpace != "" {
		if err := limit.Wait(ctx); err != nil {
			return err
		}
		return s.again(ctx)
	}
	if err != nil { // only a change of the node mends that
		if s.waits.tell(taskPublish, err) {
			s.Event(warning, "LeaseNotPublished", err.Error())
		}
		return nil
	}
	if len(s.notes.missing(l, r)) == 0 {
		s.waits.tell(taskPublish, nil)
		return nil
	}
	if err := limit.Wait(ctx); err != nil {
		return err
	}
	return s.again(ctx)
}

// again publishes and tells how that went.
func (s *Store) again(ctx context.Context) error {
	err := s.republish(ctx)
	s.waits.tell(taskPublish, err)
	return err
}

// republish reads want under the lock: an Acquire that ran meanwhile has the newer one.
func (s *Store) republish(ctx context.Context) error {
	s.own.writing.Lock()
	defer s.own.writing.Unlock()
	want, _ := s.own.wanted()
	_, err := s.publish(ctx, *want)
	return err
}

// keepNetwork writes the condition NetworkUnavailable; r may be older than what is written already.
func (s *Store) keepNetwork(ctx context.Context, r record, limit *rate.Limiter) error {
	_, want := s.own.wanted()
	if want == nil {
		return nil
	}
	if r.network == *want {
		s.waits.tell(taskNetwork, nil)
		return nil
	}
	if err := limit.Wait(ctx); err != nil {
		return err
	}
	err := s.writeNetwork(ctx, *want)
	s.waits.tell(taskNetwork, err)
	return err
}

func (s *Store) writeNetwork(ctx context.Context, want condition) error {
	n, err := s.api.getNode(ctx, s.lean(), s.node)
	if err != nil {
		return err
	}
	have := n.network
	if have == want {
		return nil
	}
	now := stamp(time.Now())
	c := map[string]any{
		"type": networkUnavailable, "status": want.status, "reason": want.reason, "message": want.message,
		"lastHeartbeatTime": now,
	}
	if have.status != want.status {
		c["lastTransitionTime"] = now
	}
	// A strategic merge patch merges conditions by their type; a merge patch would replace the whole list.
	patch := map[string]any{"status": map[string]any{"conditions": []any{c}}}
	return s.api.patchStatus(ctx, s.node, strategicPatch, patch)
}
