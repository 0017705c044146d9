package kube

import "maps"

// objects are those of a kind that makes rules, by name. Who changes them holds the state's lock.
type objects[T any] struct {
	all  map[string]T          // nil: never listed
	same func(was, now T) bool // rules are the same
}

// put enters an object, and reports whether rules differ.
func (o *objects[T]) put(name string, now T) bool {
	was, ok := o.all[name]
	o.all[name] = now
	return !ok || !o.same(was, now)
}

// remove forgets an object.
func (o *objects[T]) remove(name string) { delete(o.all, name) }

// replace enters all objects, and reports whether rules differ.
func (o *objects[T]) replace(all map[string]T) bool {
	was := o.all
	o.all = all
	return was == nil || !maps.EqualFunc(was, all, o.same)
}

// put enters an object of a kind into the state.
func put[T any](s *state, o *objects[T], name string, now T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.put(name, now) {
		s.differ()
	}
}

// remove takes an object of a kind from the state.
func remove[T any](s *state, o *objects[T], name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.remove(name)
	s.differ()
}

// replace enters all objects of a kind: what is not among them was deleted while nobody watched.
func replace[T any](s *state, o *objects[T], all map[string]T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.replace(all) {
		s.differ()
	}
}
