package facts

import (
	"context"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate/kernel"
)

// dropTime is how long a queueing discipline that has dropped packets before is watched for more. Drops of last week
// are no finding.
const dropTime = time.Second

// queues returns the queueing disciplines that somebody attached, with what they have counted.
func (g *gathering) queues() []kernel.Qdisc {
	all, err := g.kernel.Qdiscs()
	if err != nil {
		g.unread("queueing disciplines", err)
	}
	return all
}

// drops notes what the queueing disciplines on the path of pods' packets have dropped and let pass since they were
// counted before, when the look began. Where some drops are old and none is new, it takes a moment longer.
func (g *gathering) drops(ctx context.Context, before []kernel.Qdisc) {
	now := g.queues()
	if !slices.ContainsFunc(now, g.hasDropped) {
		return
	}
	g.Qdiscs = g.since(before, now)
	if slices.ContainsFunc(g.Qdiscs, func(q doctor.Qdisc) bool { return q.Dropped > 0 }) {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(dropTime):
		g.Qdiscs = g.since(before, g.queues())
	}
}

func (g *gathering) hasDropped(q kernel.Qdisc) bool { return q.Drops > 0 && g.Carries(q.Dev) }

// since returns the difference of two counts of the same disciplines. One that was attached in between begins at none.
func (g *gathering) since(before, now []kernel.Qdisc) []doctor.Qdisc {
	var all []doctor.Qdisc
	for _, q := range now {
		if !g.Carries(q.Dev) {
			continue
		}
		d := doctor.Qdisc{Dev: q.Dev, Kind: q.Kind, Handle: q.Handle, Hook: q.Hook, Dropped: q.Drops, Passed: q.Passed}
		i := slices.IndexFunc(before, func(b kernel.Qdisc) bool {
			return b.Dev == q.Dev && b.Kind == q.Kind && b.Handle == q.Handle && b.Hook == q.Hook
		})
		if i >= 0 && q.Drops >= before[i].Drops && q.Passed >= before[i].Passed {
			d.Dropped, d.Passed = q.Drops-before[i].Drops, q.Passed-before[i].Passed
		}
		all = append(all, d)
	}
	return all
}
