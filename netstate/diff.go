package netstate

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// State is a set of objects by slot.
type State map[Key]Object

// NewState returns a State of the objects; of two with the same Key the later one stays.
func NewState(objects ...Object) State {
	s := make(State, len(objects))
	s.Add(objects...)
	return s
}

// Add puts the objects into s, each in its slot.
func (s State) Add(objects ...Object) {
	for _, o := range objects {
		s[o.Key()] = o
	}
}

// Merge adds all of o to s.
func (s State) Merge(o State) { maps.Copy(s, o) }

// Sorted returns the objects of s in dependency order.
func (s State) Sorted() []Object {
	objects := make([]Object, 0, len(s))
	for _, k := range slices.SortedFunc(maps.Keys(s), Key.compare) {
		objects = append(objects, s[k])
	}
	return objects
}

// String returns one object a line, in dependency order.
func (s State) String() string {
	var b strings.Builder
	for _, o := range s.Sorted() {
		b.WriteString(o.String() + "\n")
	}
	return b.String()
}

// Change is one step: a nil Was adds, a nil Want deletes, both replace.
type Change struct{ Was, Want Object }

// Key returns the slot that c changes.
func (c Change) Key() Key {
	if c.Want != nil {
		return c.Want.Key()
	}
	return c.Was.Key()
}

// String returns "+ object", "- object" or "~ object (was object)".
func (c Change) String() string {
	switch {
	case c.Was == nil:
		return "+ " + c.Want.String()
	case c.Want == nil:
		return "- " + c.Was.String()
	}
	return "~ " + c.Want.String() + " (was " + c.Was.String() + ")"
}

// Plan is the steps from one State to another, in an order that the kernel accepts. It changes an object once.
type Plan []Change

// String returns one change a line.
func (p Plan) String() string {
	var b strings.Builder
	for _, c := range p {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

// Diff returns the plan that turns have into want: adds and replaces in dependency order, then deletes in reverse,
// so that a new path exists before the old one goes. A port that is gone went with its pod.
func Diff(want, have State) Plan {
	var changed, gone []Key // sorted as such: to make a key takes a while
	both := 0
	for k, w := range want {
		h, ok := have[k]
		if ok {
			both++
		}
		if h != w && (ok || k.Kind != KindPort) {
			changed = append(changed, k)
		}
	}
	if both < len(have) {
		gone = unwanted(want, have)
	}
	slices.SortFunc(changed, Key.compare)
	slices.SortFunc(gone, func(a, b Key) int { return cmp.Or(cmp.Compare(guards(have[a]), guards(have[b])), b.compare(a)) })
	plan := make(Plan, 0, len(changed)+len(gone))
	for _, k := range changed {
		plan = append(plan, Change{Was: have[k], Want: want[k]})
	}
	for _, k := range gone {
		plan = append(plan, Change{Was: have[k]})
	}
	return plan
}

// guards returns 1 for a chain that keeps packets from leaving or coming in by the wrong way, else 0. It goes last, when
// the devices and routes of the right way are gone.
func guards(o Object) int {
	if c, ok := o.(Chain); ok && c.Role >= GuardInput {
		return 1
	}
	return 0
}

// unwanted returns the slots that only have has, and that can be deleted.
func unwanted(want, have State) (gone []Key) {
	for k := range have {
		if _, ok := want[k]; !ok && !k.Kind.undeletable() {
			gone = append(gone, k)
		}
	}
	return gone
}

// undeletable reports whether objects of a kind cannot be absent: a parameter, and what goes with its device
// or its pod.
func (k Kind) undeletable() bool {
	return k == KindSysctl || k == KindOffload || k == KindListener || k == KindPort
}
