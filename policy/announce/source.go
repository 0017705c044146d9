// Package announce lets an agent know the addresses of its node's pods before their first packet. The CNI plugin tells
// them as the last thing that it does for a pod; the API server has them a second later, or more.
package announce

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/announce/message"
)

// Source is another source, with the addresses of this node's pods as they were announced. What the other source reports
// counts once there is an address in it that is news: that was not announced, and that the pod has not given back.
type Source struct {
	from policy.Source
	node string

	mu       sync.Mutex
	notify   func()
	snapshot func() policy.Snapshot // the other source's; nil: it has nothing yet
	pods     map[string]*pod        // of this node, by identity
	early    []*early
}

var _ policy.Source = (*Source)(nil)

// early is an announcement of a pod that the other source does not have yet.
type early struct {
	message.Pod
	at    time.Time
	known chan struct{}
}

// forgetAfter is how long an announcement waits for its pod.
const forgetAfter = time.Minute

// NewSource returns a Source with the announcements of a node's pods.
func NewSource(from policy.Source, node string) *Source {
	return &Source{from: from, node: node, notify: func() {}, pods: map[string]*pod{}}
}

// Watch implements policy.Source.
func (s *Source) Watch(ctx context.Context, notify func()) error {
	s.mu.Lock()
	s.notify = notify
	s.mu.Unlock()
	return s.from.Watch(ctx, notify)
}

// Take implements policy.Source.
func (s *Source) Take() (policy.Change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change, ok := s.from.Take()
	if ok {
		change.Pods = s.follow(change)
	}
	for _, p := range s.pods { // what was announced since
		was := p.told
		change.Pods = appendChange(change.Pods, was, p.tell())
	}
	change.Snapshot = s.Snapshot
	return change, change.Rules || len(change.Pods) > 0
}

// Add takes in that a pod has some addresses now, and that no other pod has them. The channel is closed once the other source
// has the pod: then Take has returned it, or will.
func (s *Source) Add(m message.Pod) <-chan struct{} {
	e := &early{m, time.Now(), make(chan struct{})}
	s.add(e)
	s.changed()
	return e.known
}

// Remove takes in that a pod does not have some addresses any more, whatever the other source says.
func (s *Source) Remove(m message.Pod) {
	s.remove(m)
	s.changed()
}

// changed says that there is something to take.
func (s *Source) changed() {
	s.mu.Lock()
	notify := s.notify
	s.mu.Unlock()
	notify()
}

func (s *Source) remove(m message.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = slices.DeleteFunc(s.early, func(e *early) bool {
		return samePod(e.Pod, m) && overlap(e.Addresses, m.Addresses)
	})
	for _, p := range s.pods {
		if matches(m, p.reported) {
			p.remove(m.Addresses)
		}
	}
}

// Snapshot returns everything as it was taken.
func (s *Source) Snapshot() policy.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.snapshot()
	all.Pods = slices.Clone(all.Pods)
	for i, p := range all.Pods {
		if !s.local(p) {
			continue
		}
		if own := s.pods[identity(p)]; own != nil {
			all.Pods[i] = own.told
		}
	}
	return all
}

// follow takes in a change of the other source, and returns what to tell of its pods.
func (s *Source) follow(c policy.Change) (told []policy.PodChange) {
	first := s.snapshot == nil
	if s.snapshot = c.Snapshot; first {
		for _, p := range c.Snapshot().Pods {
			if s.local(p) {
				s.report(p)
			}
		}
	}
	for _, change := range c.Pods {
		was, now := change.Was, change.Now
		if was != nil && s.pods[identity(was)] != nil {
			id := identity(was)
			if was = s.pods[id].told; !s.local(now) || identity(now) != id {
				delete(s.pods, id)
			}
		}
		if s.local(now) {
			now = s.report(now)
		}
		told = appendChange(told, was, now)
	}
	return told
}

// report takes in a pod of this node as the other source has it, and returns how to tell it.
func (s *Source) report(p *policy.Pod) *policy.Pod {
	own := s.pods[identity(p)]
	if own == nil {
		own = &pod{}
		s.pods[identity(p)] = own
	}
	own.reported = p
	s.early = slices.DeleteFunc(s.early, func(e *early) bool {
		if !matches(e.Pod, p) {
			return false
		}
		if len(p.Addrs) == 0 { // or who knows which is newer
			own.announced = e.Addresses
		}
		close(e.known)
		return true
	})
	return own.tell()
}

// add takes in an announcement.
func (s *Source) add(e *early) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = slices.DeleteFunc(s.early, func(old *early) bool {
		return samePod(old.Pod, e.Pod) || overlap(old.Addresses, e.Addresses) || e.at.Sub(old.at) > forgetAfter
	})
	var mine *pod
	for _, p := range s.pods {
		switch {
		case matches(e.Pod, p.reported):
			mine = p
		case overlap(p.addrs(), e.Addresses):
			p.remove(e.Addresses)
		}
	}
	if mine == nil {
		s.early = append(s.early, e)
		return
	}
	mine.add(e.Addresses)
	close(e.known)
}

// local reports whether a pod is one of this node that policies can isolate.
func (s *Source) local(p *policy.Pod) bool {
	return p != nil && p.Node == s.node && (policy.Endpoint{Pod: p}).Selectable()
}

// identity is the same for a pod as long as it is there.
func identity(p *policy.Pod) string { return cmp.Or(p.UID, p.String()) }

// matches reports whether a message may be about a pod.
func matches(m message.Pod, p *policy.Pod) bool {
	return samePod(m, message.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID})
}

// samePod reports whether two messages may be about one pod. Not everybody knows a pod's UID.
func samePod(m, o message.Pod) bool {
	return m.Namespace == o.Namespace && m.Name == o.Name && (m.UID == "" || o.UID == "" || m.UID == o.UID)
}
