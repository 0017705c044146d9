package enforce

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// claims are the pods whose status has addresses that are not theirs, and how much more may be reported of them. What a
// status says is its node's choice, and how many pods there are may be, too.
type claims struct {
	pods          map[string]bool // by identity: they are reported; true: this node's addresses are among those
	lines, events *rate.Limiter
	unlogged      int // lines that were not written
}

// How much is reported: claimLines at once and one a minute from then on, and claimEvents at once and one in ten minutes.
const claimLines, claimEvents = 100, 5

func newClaims() claims {
	return claims{lines: rate.NewLimiter(rate.Every(time.Minute), claimLines),
		events: rate.NewLimiter(rate.Every(10*time.Minute), claimEvents)}
}

// claimed are the pods of other nodes that claim addresses of this node's.
type claimed struct {
	some []string // at most claimEvents
	pods int
}

// Claimed returns how many pods of other nodes claim addresses of this node's, and what to say of the first.
func (e *Enforcer) Claimed() (some []string, pods int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.claimed.some, e.claimed.pods
}

// reportClaims logs once of each pod that its status has an address of another node's pods. The node whose address it is
// makes an event of it.
func (e *Enforcer) reportClaims() {
	before := e.claims.pods
	e.claims.pods = map[string]bool{}
	own := claimed{}
	for _, c := range e.table.Claims() {
		id := cmp.Or(c.Pod.UID, c.Pod.String())
		counted, seen := e.claims.pods[id]
		told, logged := before[id]
		if !seen && !logged {
			e.logClaim(slog.String("pod", c.Pod.String()), slog.String("node", c.Pod.Node), slog.String("address", c.Addr.String()),
				slog.String("owner", c.Node))
		}
		mine := c.Node == e.Node
		if e.claims.pods[id] = counted || mine; counted || !mine {
			continue
		}
		text := fmt.Sprintf("the status of pod %s of node %s has %s, an address of this node's: it does not count", c.Pod, c.Pod.Node, c.Addr)
		if own.pods++; len(own.some) < claimEvents {
			own.some = append(own.some, text)
		}
		if !told && e.Event != nil && e.claims.events.Allow() {
			e.Event("Warning", "AddressClaimed", text)
		}
	}
	e.Metrics.claims.Set(float64(len(e.claims.pods)))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.claimed = own
}

// logClaim logs within the limit. Beyond it, the metric twill_policy_claims says how many pods there are.
func (e *Enforcer) logClaim(args ...any) {
	if !e.claims.lines.Allow() {
		e.claims.unlogged++
		return
	}
	if e.claims.unlogged > 0 {
		args = append(args, "more_of_this_was_not_logged", e.claims.unlogged)
		e.claims.unlogged = 0
	}
	e.Log.Warn("a pod's status has an address that is not its own, it does not count", args...)
}
