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

	calls sync.Mutex // held while f is called, and locked before mu
	f     func(policy.Change)

	mu       sync.Mutex
	snapshot func() policy.Snapshot // the other source's; nil: it has nothing yet
	pods     map[string]*pod        // of this node, by identity
	early    []*early
	arrived  []*early // they are told when f was called
}

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
	return &Source{from: from, node: node, pods: map[string]*pod{}}
}

// Watch implements policy.Source. It may be called once.
func (s *Source) Watch(ctx context.Context, f func(policy.Change)) error {
	s.calls.Lock()
	s.f = f
	s.calls.Unlock()
	return s.from.Watch(ctx, func(c policy.Change) {
		s.calls.Lock()
		defer s.calls.Unlock()
		s.tell(c.Rules, s.follow(c))
	})
}

// Add takes in that a pod has some addresses now, and that no other pod has them. The channel is closed once f was told,
// which is when the other source has the pod.
func (s *Source) Add(m message.Pod) <-chan struct{} {
	s.calls.Lock()
	defer s.calls.Unlock()
	e := &early{m, time.Now(), make(chan struct{})}
	s.tell(false, s.add(e))
	return e.known
}

// Remove takes in that a pod does not have some addresses any more, whatever the other source says.
func (s *Source) Remove(m message.Pod) {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.tell(false, s.remove(m))
}

// Snapshot returns everything as f knows it.
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

// tell calls f, if there is something to tell. The caller has locked calls.
func (s *Source) tell(rules bool, pods []policy.PodChange) {
	if rules || len(pods) > 0 {
		s.f(policy.Change{Rules: rules, Pods: pods, Snapshot: s.Snapshot})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.arrived {
		close(e.known)
	}
	s.arrived = nil
}

// follow takes in a change of the other source, and returns what to tell of it.
func (s *Source) follow(c policy.Change) (told []policy.PodChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
		s.arrived = append(s.arrived, e)
		return true
	})
	return own.tell()
}

// add takes in an announcement, and returns what to tell.
func (s *Source) add(e *early) (told []policy.PodChange) {
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
		case overlap(p.told.Addrs, e.Addresses):
			p.remove(e.Addresses)
			told = p.appendTo(told)
		}
	}
	if mine == nil {
		s.early = append(s.early, e)
		return told
	}
	mine.add(e.Addresses)
	s.arrived = append(s.arrived, e)
	return mine.appendTo(told)
}

// remove takes in that addresses are given back, and returns what to tell.
func (s *Source) remove(m message.Pod) (told []policy.PodChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = slices.DeleteFunc(s.early, func(e *early) bool {
		return samePod(e.Pod, m) && overlap(e.Addresses, m.Addresses)
	})
	for _, p := range s.pods {
		if matches(m, p.reported) {
			p.remove(m.Addresses)
			told = p.appendTo(told)
		}
	}
	return told
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
