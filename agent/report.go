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
	level := slog.LevelDebug
	if a.status.isNews("apply", first.Error()) {
		level = slog.LevelError
	}
	a.Log.Log(context.Background(), level, "applied a plan in part", append(args, "err", first, "more_errors", rest)...)
}

// firstError is the first of joined errors, and how many more there are.
func firstError(err error) (more int, first error) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		return len(joined.Unwrap()) - 1, joined.Unwrap()[0]
	}
	return 0, err
}

// skips are the peers that are left out, and what was told of them. What a record says is its node's choice, and so is how
// often it says something else. So what is told is one line for a node and a class of reasons, and there is a bound to all of it: an event goes to the
// cluster's store, once for every node of the cluster.
type skips struct {
	now    map[skipped]bool
	logs   *rate.Limiter
	events *rate.Limiter
	told   map[skipped]time.Time // the events of the last skipsRest
	silent int                   // lines that were not logged
}

// skipped is what is told of a subnet.Skip.
type skipped struct {
	node string
	code subnet.Code
}

// How much is told: skipLines at once and one a minute from then on; skipEvents at once and one in ten minutes, and the same one
// after skipsRest at the earliest.
const (
	skipLines, skipEvents = 100, 5
	skipsRest             = time.Hour
)

func newSkips() skips {
	return skips{logs: rate.NewLimiter(rate.Every(time.Minute), skipLines), events: rate.NewLimiter(rate.Every(10*time.Minute), skipEvents),
		told: map[skipped]time.Time{}}
}

// reportSkips logs, and tells the cluster, which peers are left out.
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
		a.logSkip(slog.LevelWarn, "a peer is left out", "node", clip(s.Node), "code", string(s.Code), "reason", clip(s.Detail))
		if a.skips.mayTell(k, at) {
			a.event("Warning", "PeerSkipped", "node "+clip(s.Node)+" is left out: "+s.Code.Meaning())
		}
	}
	for k := range before {
		if !a.skips.now[k] {
			a.logSkip(slog.LevelInfo, "a peer is no longer left out for this", "node", clip(k.node), "code", string(k.code))
		}
	}
	a.Metrics.skipped.Set(float64(len(a.skips.now)))
}

// mayTell reports whether there may be an event of k, and takes it for told.
func (s *skips) mayTell(k skipped, at time.Time) bool {
	maps.DeleteFunc(s.told, func(_ skipped, then time.Time) bool { return at.Sub(then) > skipsRest })
	if _, ok := s.told[k]; ok || !s.events.AllowN(at, 1) {
		return false
	}
	s.told[k] = at
	return true
}

// logSkip logs as long as there is not too much; then the metric twill_peers_skipped tells.
func (a *Agent) logSkip(level slog.Level, text string, args ...any) {
	if !a.skips.logs.Allow() {
		a.skips.silent++
		return
	}
	if a.skips.silent > 0 {
		args = append(args, "more_of_this_was_not_logged", a.skips.silent)
		a.skips.silent = 0
	}
	a.Log.Log(context.Background(), level, text, args...)
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
