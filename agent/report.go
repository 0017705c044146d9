package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// logPlan logs an applied plan, with each change at debug level. Its first change is the cause: what is repaired again
// and again is one line. So is what cannot be applied, and logResult tells of it if it is not settled in another round.
func (a *Agent) logPlan(plan netstate.Plan, took time.Duration, err error) {
	counts := map[netstate.Kind]int{}
	for _, c := range plan {
		counts[c.Key().Kind]++
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
	cause := fmt.Sprint(plan[0].Key())
	if err != nil {
		a.Metrics.applyErrors.Inc()
		more, first := firstError(err)
		args = append(args, "err", first, "more_errors", more)
		if !a.causes.Add(a.Log, slog.LevelDebug, "applied a plan in part", cause, args...) {
			return
		}
	} else if !a.causes.Add(a.Log, slog.LevelInfo, "applied a plan", cause, args...) {
		a.Log.Debug("applied a plan", args...)
	}
	for _, c := range plan {
		a.Log.Debug("change", "change", c.String(), "node", a.Node)
	}
}

// logResult logs why the kernel is not as wanted. The cause is the first object that is left, or that nobody knows the rules.
func (a *Agent) logResult(r result) {
	if r.err == nil {
		return
	}
	more, first := firstError(r.err)
	a.history.add(Event{Kind: "error", Text: first})
	args := []any{"node", a.Node, "err", first, "more_errors", more}
	const what = "bring the kernel to the wanted state"
	if len(r.left) == 0 || isAboutRules(r.err) {
		a.causes.Error(a.Log, what, errors.New(first), "node", a.Node)
		return
	}
	a.causes.Add(a.Log, slog.LevelError, what, fmt.Sprint(r.left[0].Key()), args...)
}

// firstError returns the first line of an error's text, which of joined errors is the first, and how many more there
// are.
func firstError(err error) (more int, first string) {
	first, rest, _ := strings.Cut(err.Error(), "\n")
	if rest == "" {
		return 0, first
	}
	return strings.Count(rest, "\n") + 1, first
}

// skips are the peers that are left out, and what was reported of them. What a record says is its
// node's choice, and so is how often it says something else. So each node and class of reasons is
// one line, and all of it is bounded: an event goes to the cluster's store, once for every node of
// the cluster.
type skips struct {
	now      map[skipped]bool
	logs     *rate.Limiter
	events   *rate.Limiter
	reported map[skipped]time.Time // the events of the last skipEventRest
	unlogged int                   // lines that were not logged
}

// skipped is what is reported of a subnet.Skip.
type skipped struct {
	node string
	code subnet.Code
}

// How much is reported: skipLines at once and one a minute from then on; skipEvents at once and one
// in ten minutes, and the same one after skipEventRest at the earliest.
const (
	skipLines, skipEvents = 100, 5
	skipEventRest         = time.Hour
)

func newSkips() skips {
	return skips{logs: rate.NewLimiter(rate.Every(time.Minute), skipLines),
		events:   rate.NewLimiter(rate.Every(10*time.Minute), skipEvents),
		reported: map[skipped]time.Time{}}
}

// reportSkips logs which peers are left out, and makes events of it.
func (a *Agent) reportSkips(all []subnet.Skip) {
	before, at := a.skips.now, time.Now()
	a.skips.now = make(map[skipped]bool, len(all))
	for _, s := range all {
		k := skipped{s.Node, s.Code}
		if a.skips.now[k] {
			continue
		}
		a.skips.now[k] = true
		if before[k] {
			continue
		}
		a.logSkip(slog.LevelWarn, "a peer is left out",
			"node", clip(s.Node), "code", string(s.Code), "reason", clip(s.Detail))
		if a.skips.mayReport(k, at) {
			a.event("Warning", "PeerSkipped", "node "+clip(s.Node)+" is left out: "+s.Code.Meaning())
		}
	}
	for k := range before {
		if !a.skips.now[k] {
			a.logSkip(slog.LevelInfo, "a peer is no longer left out for this",
				"node", clip(k.node), "code", string(k.code))
		}
	}
	a.Metrics.skipped.Set(float64(len(a.skips.now)))
}

// mayReport reports whether there may be an event of k now, and counts it.
func (s *skips) mayReport(k skipped, at time.Time) bool {
	maps.DeleteFunc(s.reported, func(_ skipped, then time.Time) bool { return at.Sub(then) > skipEventRest })
	if _, ok := s.reported[k]; ok || !s.events.AllowN(at, 1) {
		return false
	}
	s.reported[k] = at
	return true
}

// logSkip logs within the limit. Beyond it, the metric twill_peers_skipped says how many peers are left out.
func (a *Agent) logSkip(level slog.Level, text string, args ...any) {
	if !a.skips.logs.Allow() {
		a.skips.unlogged++
		return
	}
	if a.skips.unlogged > 0 {
		args = append(args, "more_of_this_was_not_logged", a.skips.unlogged)
		a.skips.unlogged = 0
	}
	a.Log.Log(context.Background(), level, text, args...)
}

// maxReason is how much of a reason is shown, in bytes: it may quote a value of any length that
// somebody else wrote.
const maxReason = 500

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "") + fmt.Sprintf(" … (%d bytes)", len(s))
}

// reportContention reports objects that someone else keeps changing. Those of one moment are one cause: who sets a device
// down takes its routes along.
func (a *Agent) reportContention() {
	objects := a.loop.contention.unreported()
	if len(objects) == 0 {
		return
	}
	a.Metrics.contended.Add(float64(len(objects)))
	const what = "something else keeps changing this, it is repaired less often now"
	if a.causes.Add(a.Log, slog.LevelWarn, what, objects[0],
		"node", a.Node, "object", objects[0], "more_objects", len(objects)-1) {
		a.event("Warning", "Contended", "something on this node keeps changing: "+objects[0])
	}
}

// reportNetwork keeps the node's condition NetworkUnavailable in sync with the data path.
func (a *Agent) reportNetwork(r result) {
	reporter, ok := a.Store.(subnet.Reporter)
	if !ok {
		return
	}
	if err := a.status.Ready(); err == nil {
		reporter.Network(true, "TwillIsUp", "Twill is running on this node")
	} else if a.status.wasReady() {
		reporter.Network(false, "DataPathBroken", strings.TrimSpace(err.Error()+errText(r.err)))
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	_, first := firstError(err)
	return ": " + first
}

func (a *Agent) event(kind, reason, message string) {
	if r, ok := a.Store.(subnet.Reporter); ok {
		r.Event(kind, reason, message)
	}
}
