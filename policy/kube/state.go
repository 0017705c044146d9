package kube

import (
	"maps"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/policy"
)

// state is what the API server has, and how that differs from the last Change.
type state struct {
	mu         sync.Mutex
	notify     func()            // there may be a Change to take
	pods       map[string]*entry // by UID; nil: never listed
	namespaces objects[labels.Set]
	policies   objects[*policy.NetworkPolicy] // by namespace/name
	cluster    clusterState

	rules bool                   // policies or namespaces differ
	was   map[string]*policy.Pod // pods that may differ as the last Change had them, by UID; nil: it did not
	told  policy.Snapshot        // the last Change's, without its pods

	shared shared
}

func newState() *state {
	s := &state{notify: func() {}, was: map[string]*policy.Pod{}, cluster: newClusterState()}
	s.namespaces.same = func(was, now labels.Set) bool { return maps.Equal(was, now) }
	s.policies.same = func(was, now *policy.NetworkPolicy) bool { return reflect.DeepEqual(was.Spec, now.Spec) }
	return s
}

// begin says whom to notify, and whether ClusterNetworkPolicies are followed.
func (s *state) begin(notify func(), cluster bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify, s.cluster.followed = notify, cluster
}

// take returns what changed since it was called last, and whether that is anything. Before all kinds were listed it is
// nothing.
func (s *state) take() (policy.Change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil || s.namespaces.all == nil || s.policies.all == nil || !s.cluster.listed() {
		return policy.Change{}, false
	}
	change := policy.Change{Rules: s.rules, Snapshot: s.snapshot}
	if s.told.Namespaces == nil {
		change.Rules = true
		for uid, e := range s.pods {
			if !s.placed(&e.Pod) {
				s.was[uid] = nil
			}
		}
	} else {
		change.Pods = s.podChanges()
	}
	s.rules = false
	if change.Rules {
		s.told.Namespaces = maps.Clone(s.namespaces.all)
		s.told.Policies = make([]policy.NetworkPolicy, 0, len(s.policies.all))
		for _, p := range s.policies.all {
			s.told.Policies = append(s.told.Policies, *p)
		}
		s.cluster.tell(&s.told)
	}
	return change, change.Rules || len(change.Pods) > 0
}

// placed reports whether the pod's namespace is known. Its labels are not, before: the pod could be taken for one that
// a policy allows, or for one that no policy selects.
func (s *state) placed(p *policy.Pod) bool {
	_, ok := s.namespaces.all[p.Namespace]
	return ok
}

// podChanges returns how pods differ from the last Change, and forgets it. What has to wait for its namespace stays.
func (s *state) podChanges() (all []policy.PodChange) {
	waiting := map[string]*policy.Pod{}
	defer func() { s.was = waiting }()
	for uid, was := range s.was {
		switch now, ok := s.pods[uid]; {
		case ok && !s.placed(&now.Pod):
			waiting[uid] = was
		case !ok && was != nil:
			all = append(all, policy.PodChange{Was: was})
		case ok && (was == nil || !was.Equal(&now.Pod)):
			all = append(all, policy.PodChange{Was: was, Now: &now.Pod})
		}
	}
	return all
}

// snapshot returns everything as it is after the last Change that was taken.
func (s *state) snapshot() policy.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.told
	all.Policies, all.ClusterPolicies = slices.Clone(all.Policies), slices.Clone(all.ClusterPolicies)
	all.Namespaces = maps.Clone(all.Namespaces)
	all.Pods = make([]*policy.Pod, 0, len(s.pods))
	for uid, e := range s.pods {
		if _, differs := s.was[uid]; !differs {
			all.Pods = append(all.Pods, &e.Pod)
		}
	}
	for _, was := range s.was {
		if was != nil {
			all.Pods = append(all.Pods, was)
		}
	}
	return all
}

// keep remembers a pod as it is, before it changes for the first time since the last Change.
func (s *state) keep(uid string) {
	if s.told.Namespaces == nil {
		return // the first Change has no pods
	}
	defer s.notify() // what waited for its namespace may wait no more
	if _, ok := s.was[uid]; ok {
		return
	}
	s.was[uid] = nil
	if e, ok := s.pods[uid]; ok {
		s.was[uid] = &e.Pod
	}
}

// putPod enters a pod of a watch.
func (s *state) putPod(p *pod) {
	e := s.shared.entry(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(e)
}

// put enters e, unless it says nothing new.
func (s *state) put(e *entry) {
	old, ok := s.pods[e.UID]
	switch {
	case e.HostNetwork || e.Ended:
		s.shared.release(e)
		s.remove(e.UID)
		return
	case ok && old.Equal(&e.Pod):
		s.shared.release(e)
		return
	}
	s.remove(e.UID)
	s.keep(e.UID)
	s.pods[e.UID] = e
}

func (s *state) removePod(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(uid)
}

func (s *state) remove(uid string) {
	if e, ok := s.pods[uid]; ok {
		s.keep(uid)
		s.shared.release(e)
		delete(s.pods, uid)
	}
}

// replacePods enters all pods: what is not in the list was deleted while nobody watched.
func (s *state) replacePods(all []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil {
		s.pods = make(map[string]*entry, len(all))
		s.notify()
	}
	there := make(map[string]bool, len(all))
	for _, e := range all {
		there[e.UID] = true
		s.put(e)
	}
	for uid := range s.pods {
		if !there[uid] {
			s.remove(uid)
		}
	}
}

// differ notes that policies or namespaces changed.
func (s *state) differ() {
	s.rules = true
	s.notify()
}

func (s *state) putPolicy(p *policy.NetworkPolicy) {
	put(s, &s.policies, p.Namespace+"/"+p.Name, trimmed(p))
}

// trimmed is a policy without what is nobody's business here.
func trimmed(p *policy.NetworkPolicy) *policy.NetworkPolicy {
	p.ManagedFields, p.Annotations = nil, nil
	return p
}

func (s *state) removePolicy(p *policy.NetworkPolicy) { remove(s, &s.policies, p.Namespace+"/"+p.Name) }

func (s *state) replacePolicies(list []*policy.NetworkPolicy) {
	all := make(map[string]*policy.NetworkPolicy, len(list))
	for _, p := range list {
		all[p.Namespace+"/"+p.Name] = trimmed(p)
	}
	replace(s, &s.policies, all)
}

func (s *state) putNamespace(name string, with labels.Set) { put(s, &s.namespaces, name, with) }

func (s *state) removeNamespace(name string) { remove(s, &s.namespaces, name) }

func (s *state) replaceNamespaces(all map[string]labels.Set) { replace(s, &s.namespaces, all) }
