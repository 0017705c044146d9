package agent

import (
	"time"

	"github.com/twill-net/twill/netstate"
)

// A key that is repaired fightLimit times within fightWindow is fought over: someone else writes it too. It
// then waits, twice as long each time, up to fightMax.
const (
	fightLimit  = 30
	fightWindow = 10 * time.Second
	fightFirst  = 2 * time.Second
	fightMax    = time.Minute
)

// fights remembers who repairs what too often. The zero value is ready. Keys whose wanted object changes are
// not repairs and start anew.
type fights struct {
	keys map[netstate.Key]*fight
}

type fight struct {
	want    netstate.Object
	repairs []time.Time // within the window
	hold    time.Duration
	until   time.Time
	fresh   bool // not reported yet
}

// crowd is a plan so large that it is not about single peers: a start, or a device with all that stands on it. Of those
// only what is not about a peer is remembered.
const crowd = 1000

// note records an applied plan.
func (f *fights) note(plan netstate.Plan, now time.Time) {
	if f.keys == nil {
		f.keys = map[netstate.Key]*fight{}
	}
	for _, c := range plan {
		if kind := c.Key().Kind; len(plan) > crowd && kind >= netstate.KindNeigh && kind <= netstate.KindRoute {
			continue
		}
		k := f.keys[c.Key()]
		if k == nil || k.want != c.Want {
			f.keys[c.Key()] = &fight{want: c.Want, repairs: []time.Time{now}}
			continue
		}
		k.note(now)
	}
	f.forget(now)
}

func (k *fight) note(now time.Time) {
	recent := k.repairs[:0]
	for _, t := range k.repairs {
		if now.Sub(t) < fightWindow {
			recent = append(recent, t)
		}
	}
	k.repairs = append(recent, now)
	if len(k.repairs) < fightLimit {
		return
	}
	k.hold = min(max(2*k.hold, fightFirst), fightMax)
	k.until, k.repairs, k.fresh = now.Add(k.hold), k.repairs[:0], true
}

// forget drops keys that have been left in peace.
func (f *fights) forget(now time.Time) {
	for key, k := range f.keys {
		quiet := len(k.repairs) == 0 || now.Sub(k.repairs[len(k.repairs)-1]) > fightWindow
		if quiet && now.Sub(k.until) > 2*fightMax {
			delete(f.keys, key)
		}
	}
}

// held says whether repairing key waits.
func (f *fights) held(key netstate.Key, now time.Time) bool {
	k := f.keys[key]
	return k != nil && now.Before(k.until)
}

// any says whether a repair waits.
func (f *fights) any() bool {
	for _, k := range f.keys {
		if time.Now().Before(k.until) {
			return true
		}
	}
	return false
}

// fresh lists the objects whose fight has not been reported yet.
func (f *fights) fresh() []string {
	var list []string
	for key, k := range f.keys {
		if !k.fresh {
			continue
		}
		k.fresh = false
		if k.want != nil {
			list = append(list, k.want.String())
		} else {
			list = append(list, key.Kind.String()+" "+key.Name+" "+key.Prefix.String())
		}
	}
	return list
}
