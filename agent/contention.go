package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/twill-net/twill/netstate"
)

// An object that is repaired contentionLimit times within contentionWindow is contended: somebody
// else writes it too. Its repair then waits for firstSuppression, twice as long each time, up to
// lastSuppression.
const (
	contentionLimit  = 30
	contentionWindow = 10 * time.Second
	firstSuppression = 2 * time.Second
	lastSuppression  = time.Minute
)

// contention remembers which objects are repaired too often. The zero value is ready. When another
// object is wanted in the same slot, it is no repair, and counting begins again.
type contention struct {
	keys map[netstate.Key]*repairs
}

// repairs are those of one object.
type repairs struct {
	want     netstate.Object
	times    []time.Time // within the window
	hold     time.Duration
	until    time.Time // suppressed until then
	reported bool
}

// bulkThreshold is the size of a plan that is not about single peers: a start, or a device with all
// that stands on it. Of such a plan the entries of peers are not counted.
const bulkThreshold = 1000

// record counts an applied plan.
func (c *contention) record(plan netstate.Plan, now time.Time) {
	if c.keys == nil {
		c.keys = map[netstate.Key]*repairs{}
	}
	for _, change := range plan {
		kind := change.Key().Kind
		if len(plan) > bulkThreshold && kind >= netstate.KindNeigh && kind <= netstate.KindPodPort {
			continue
		}
		r := c.keys[change.Key()]
		if r == nil || r.want != change.Want {
			c.keys[change.Key()] = &repairs{want: change.Want, times: []time.Time{now}, reported: true}
			continue
		}
		r.record(now)
	}
	c.expire(now)
}

func (r *repairs) record(now time.Time) {
	recent := r.times[:0]
	for _, t := range r.times {
		if now.Sub(t) < contentionWindow {
			recent = append(recent, t)
		}
	}
	r.times = append(recent, now)
	if len(r.times) < contentionLimit {
		return
	}
	r.hold = min(max(2*r.hold, firstSuppression), lastSuppression)
	r.until, r.times, r.reported = now.Add(r.hold), r.times[:0], false
}

// expire drops objects that have not been repaired for a while.
func (c *contention) expire(now time.Time) {
	for key, r := range c.keys {
		quiet := len(r.times) == 0 || now.Sub(r.times[len(r.times)-1]) > contentionWindow
		if quiet && now.Sub(r.until) > 2*lastSuppression {
			delete(c.keys, key)
		}
	}
}

// suppressed reports whether the repair of key waits.
func (c *contention) suppressed(key netstate.Key, now time.Time) bool {
	r := c.keys[key]
	return r != nil && now.Before(r.until)
}

// suppressing reports whether any repair waits.
func (c *contention) suppressing(now time.Time) bool {
	for _, r := range c.keys {
		if now.Before(r.until) {
			return true
		}
	}
	return false
}

// unreported returns the contended objects that it has not returned yet, what others stand on first.
func (c *contention) unreported() []string {
	var keys []netstate.Key
	for key, r := range c.keys {
		if !r.reported {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b netstate.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), a.Prefix.Compare(b.Prefix))
	})
	var list []string
	for _, key := range keys {
		r := c.keys[key]
		r.reported = true
		if r.want != nil {
			list = append(list, r.want.String())
		} else {
			list = append(list, key.Kind.String()+" "+key.Name+" "+key.Prefix.String())
		}
	}
	return list
}
