package enforce

import (
	"slices"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// doubtFor is how long UDP packets that begin an entry of conntrack have to be allowed in both directions after packets have
// passed that nobody judged. They may be answers, of which nobody knows the question.
const doubtFor = time.Second

// isGap reports whether a plan begins to judge packets, which passed before.
func isGap(plan netstate.Plan) bool {
	return slices.ContainsFunc(plan, func(c netstate.Change) bool {
		hook, ok := c.Want.(netstate.Hook)
		return ok && c.Was == nil && !hook.Local && hook.Family != netstate.Ethernet
	})
}

// beginDoubt sets the table's Doubt if a plan ends a gap, and returns what to change then.
func (e *Enforcer) beginDoubt(plan netstate.Plan, have netstate.State) netstate.Plan {
	if !isGap(plan) || e.Audit {
		return plan
	}
	e.gap = true
	e.doubt = time.Now().Add(doubtFor)
	e.setDoubt(true)
	return netstate.Diff(e.table.State(), have)
}

// endDoubt reports whether the doubt is over by now. The table has to be told.
func (e *Enforcer) endDoubt() bool {
	if e.doubt.IsZero() || time.Now().Before(e.doubt) {
		return false
	}
	e.doubt = time.Time{}
	return true
}

// setDoubt tells the table, and returns what to change in it.
func (e *Enforcer) setDoubt(on bool) netstate.Plan {
	e.tableMu.Lock()
	defer e.tableMu.Unlock()
	return e.table.Doubt(on)
}

// forget ends what began in a gap, once the rules are there: the next packet of such a connection begins an entry anew, and is
// judged. What fails is tried again with the next change.
func (e *Enforcer) forget(site policy.Site) {
	if !e.gap || e.Forget == nil {
		return
	}
	n, err := e.Forget(site.Subnets)
	if err != nil {
		e.causes.Error(e.Log, "forget connections that began while network policies were not enforced", err)
		return
	}
	e.gap = false
	e.Log.Debug("connections may have begun while network policies were not enforced", "forgotten", n)
}
