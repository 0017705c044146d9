package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// logPlan is one line per applied plan, and each change at debug level.
func (a *Agent) logPlan(plan netstate.Plan, took time.Duration, err error) {
	counts := map[netstate.Kind]int{}
	for _, c := range plan {
		counts[c.Key().Kind]++
		a.Log.Debug("change", "change", c.String(), "node", a.Node)
	}
	args := []any{"node", a.Node, "changes", len(plan)}
	for k := netstate.KindLink; k <= netstate.KindChain; k++ {
		if counts[k] > 0 {
			args = append(args, k.String(), counts[k])
			a.Metrics.changes.WithLabelValues(k.String()).Add(float64(counts[k]))
		}
	}
	a.Metrics.applySeconds.Observe(took.Seconds())
	a.Metrics.lastApply.SetToCurrentTime()
	args = append(args, "took", took.Round(time.Microsecond))
	if err == nil {
		a.Log.Info("applied a plan", args...)
		return
	}
	a.Metrics.applyErrors.Inc()
	rest, first := firstError(err)
	a.Log.Error("applied a plan in part", append(args, "err", first, "more_errors", rest)...)
}

// firstError is the first of joined errors, and how many more there are.
func firstError(err error) (more int, first error) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		return len(joined.Unwrap()) - 1, joined.Unwrap()[0]
	}
	return 0, err
}

// reportSkips logs, and tells the cluster, which peers are left out; each once as long as it lasts.
func (a *Agent) reportSkips(skips []subnet.Skip) {
	now := make(map[subnet.Skip]bool, len(skips))
	for _, s := range skips {
		s.Reason = clip(s.Reason)
		now[s] = true
		if !a.skips[s] {
			a.Log.Warn("a peer is left out", "node", s.Node, "reason", s.Reason)
			a.event("Warning", "PeerSkipped", "node "+s.Node+" is left out: "+s.Reason)
		}
	}
	for s := range a.skips {
		if !now[s] {
			a.Log.Info("a peer is no longer left out for this", "node", s.Node, "reason", s.Reason)
		}
	}
	a.skips = now
	a.Metrics.skipped.Set(float64(len(now)))
}

// maxReason is how much of a reason is told, in bytes: it may quote a value of any length that somebody else wrote.
const maxReason = 500

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "") + fmt.Sprintf(" … (%d bytes)", len(s))
}

// reportFights tells of objects that someone else keeps changing.
func (a *Agent) reportFights() {
	for _, object := range a.fights.fresh() {
		a.Metrics.fights.Inc()
		a.Log.Warn("something else keeps changing this, it is repaired less often now", "node", a.Node, "object", object)
		a.event("Warning", "Contended", "something on this node keeps changing: "+object)
	}
}

// reportNetwork sets the node's NetworkUnavailable condition to the truth.
func (a *Agent) reportNetwork(o outcome) {
	r, ok := a.Store.(subnet.Reporter)
	if !ok {
		return
	}
	if err := a.status.Ready(); err == nil {
		r.Network(true, "TwillIsUp", "Twill is running on this node")
	} else if a.status.wasReady() {
		r.Network(false, "DataPathBroken", strings.TrimSpace(err.Error()+errText(o.err)))
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	_, first := firstError(err)
	return ": " + first.Error()
}

func (a *Agent) event(kind, reason, message string) {
	if r, ok := a.Store.(subnet.Reporter); ok {
		r.Event(kind, reason, message)
	}
}
