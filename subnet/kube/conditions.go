package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/kubeclient"
)

// The types of the conditions that the store keeps.
const (
	networkUnavailable = "NetworkUnavailable"
	peersReached       = "TwillPeersReached"
)

// condition is what the store writes of one.
type condition struct{ Status, Reason, Message string }

// Network implements subnet.Reporter: it sets the node's condition NetworkUnavailable, if the options say so.
func (s *Store) Network(up bool, reason, message string) {
	if !s.setsCondition {
		return
	}
	c := condition{"True", cmp.Or(reason, "TwillIsDown"), message}
	if up {
		c = condition{"False", cmp.Or(reason, "TwillIsUp"), message}
	}
	s.own.setCondition(networkUnavailable, c)
}

// Reached implements subnet.Reporter: it sets the node's condition TwillPeersReached, if the options say so. Another message
// alone is not written: each node may have one, of the same failure.
func (s *Store) Reached(all bool, reason, message string) {
	if !s.setsReached {
		return
	}
	c := condition{"False", reason, message}
	if all {
		c.Status = "True"
	}
	if last, ok := s.own.condition(peersReached); !ok || !last.same(peersReached, c) {
		s.own.setCondition(peersReached, c)
	}
}

func (o *own) setCondition(kind string, c condition) {
	o.mu.Lock()
	o.conditions[kind] = c
	o.mu.Unlock()
	o.notify()
}

func (o *own) condition(kind string) (c condition, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok = o.conditions[kind]
	return c, ok
}

// same reports whether o need not be written in place of c.
func (c condition) same(kind string, o condition) bool {
	if kind == peersReached {
		o.Message = c.Message
	}
	return c == o
}

// refusedRest is how long a condition that the API server does not allow is not tried again.
const refusedRest = time.Hour

// keepCondition writes a condition that differs; r may be older than what is written already.
func (s *Store) keepCondition(ctx context.Context, kind string, r record, limit *rate.Limiter) error {
	task := map[string]string{networkUnavailable: taskNetwork, peersReached: taskReached}[kind]
	want, ok := s.own.condition(kind)
	if !ok || kind == peersReached && time.Since(s.refused) < refusedRest {
		return nil
	}
	if r.condition(kind).same(kind, want) {
		s.progress.Report(task, nil)
		return nil
	}
	if err := limit.Wait(ctx); err != nil {
		return err
	}
	err := s.writeCondition(ctx, kind, want)
	if code := kubeclient.StatusCode(err); kind == peersReached && (code == http.StatusForbidden || code == http.StatusUnprocessableEntity) {
		s.refused = time.Now() // as by a role or a policy of before; nothing depends on it
		s.progress.Report(task, fmt.Errorf("the condition is not kept, and tried again in an hour: %w", err))
		return nil
	}
	s.progress.Report(task, err)
	return err
}

func (s *Store) writeCondition(ctx context.Context, kind string, want condition) error {
	n, err := s.api.node(ctx, s.node)
	if err != nil {
		return err
	}
	r := s.annotations.own(n)
	have := r.condition(kind)
	if have.same(kind, want) {
		return nil
	}
	now := timestamp(time.Now())
	c := map[string]any{"type": kind}
	if want == (condition{}) {
		c["$patch"] = "delete"
	} else {
		c["status"], c["reason"], c["message"], c["lastHeartbeatTime"] = want.Status, want.Reason, want.Message, now
		if have.Status != want.Status {
			c["lastTransitionTime"] = now
		}
	}
	// A strategic merge patch merges conditions by their type; a merge patch would replace the whole list.
	patch := map[string]any{"status": map[string]any{"conditions": []any{c}}}
	return s.api.patchStatus(ctx, s.node, types.StrategicMergePatchType, patch)
}
