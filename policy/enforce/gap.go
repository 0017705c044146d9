package enforce

import (
	"context"
	"slices"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// doubtFor is how long UDP packets that begin an entry of conntrack have to be allowed in both directions after packets have
// passed that nobody judged. They may be answers, of which nobody knows the question.
const doubtFor = time.Second

// opened returns the families in whose tables no rule judges packets, although one should.
func (e *Enforcer) opened(have netstate.State) (families []netstate.Family) {
	for _, family := range []netstate.Family{netstate.IPv4, netstate.IPv6, netstate.Ethernet} {
		key := netstate.Hook{Family: family}.Key()
		if e.table.State()[key] != nil && have[key] == nil {
			families = append(families, family)
		}
	}
	return families
}

// endGap begins to judge packets, which passed before in some families: it closes them, and sets the table's Doubt if that is
// about packets. It returns what the tables have then.
func (e *Enforcer) endGap(ctx context.Context, families []netstate.Family, have netstate.State) netstate.State {
	if !slices.Equal(families, []netstate.Family{netstate.Ethernet}) {
		e.gap = true
		e.doubt = time.Now().Add(doubtFor)
		e.setDoubt(true)
	}
	return e.close(ctx, families, have)
}

// close has the kernel drop what isolated pods send and get, as all the rules of a large cluster take a while to write. The other
// pods' packets pass. So it may last, too, if the kernel takes no more. It returns what the tables have then.
func (e *Enforcer) close(ctx context.Context, families []netstate.Family, have netstate.State) netstate.State {
	closing := e.table.Closing(families...)
	plan := slices.DeleteFunc(netstate.Diff(closing, have), func(c netstate.Change) bool { return c.Want == nil })
	if err := e.apply(ctx, plan, time.Now()); err != nil {
		e.causes.Error(e.Log, "close pods that network policies isolate, until all rules are there", err)
		return unreadable
	}
	have.Merge(closing)
	return have
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
