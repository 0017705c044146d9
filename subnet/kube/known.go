package kube

import (
	"encoding/json"
	"strconv"
	"sync"
)

// known remembers the podCIDRs of Nodes by their UIDs. The API server lets a Node's podCIDRs be written once, so they
// hold for the life of the Node, and over restarts of the agent. Only an API server that was restored from a backup can
// say otherwise: then its revision goes back, and everything is forgotten.
type known struct {
	mu       sync.Mutex
	revision string            // the newest one that was seen
	podCIDRs map[string]string // by UID; as in record
}

// saved is known in the checkpoint.
type saved struct {
	Revision string
	PodCIDRs map[string]string
}

// Checkpoint implements subnet.Checkpointer.
func (s *Store) Checkpoint() json.RawMessage {
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	data, err := json.Marshal(saved{s.known.revision, s.known.podCIDRs})
	if err != nil {
		return nil
	}
	return data
}

// Restore implements subnet.Checkpointer.
func (s *Store) Restore(data json.RawMessage) {
	var from saved
	if json.Unmarshal(data, &from) != nil {
		return
	}
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	s.known.revision, s.known.podCIDRs = from.Revision, from.PodCIDRs
}

// empty reports whether nothing is known.
func (k *known) empty() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.podCIDRs) == 0
}

// get returns the podCIDRs of the Node with this UID, empty if they are not known.
func (k *known) get(uid string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.podCIDRs[uid]
}

func (k *known) put(uid, podCIDRs string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.podCIDRs == nil {
		k.podCIDRs = map[string]string{}
	}
	k.podCIDRs[uid] = podCIDRs
}

func (k *known) forget(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.podCIDRs, uid)
}

// keep forgets all Nodes but these.
func (k *known) keep(all []*node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	left := make(map[string]string, len(all))
	for _, n := range all {
		if cidrs, ok := k.podCIDRs[n.uid]; ok {
			left[n.uid] = cidrs
		}
	}
	k.podCIDRs = left
}

// reach notes how far the API server is and reports whether it went back: then it was restored, and nothing that is
// known holds.
func (k *known) reach(revision string) (back bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if back = older(revision, k.revision); back {
		k.podCIDRs = nil
	}
	k.revision = revision
	return back
}

// advance notes that the API server is at least so far.
func (k *known) advance(revision string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if older(k.revision, revision) {
		k.revision = revision
	}
}

// older compares resource versions, which are numbers that grow:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions.
func older(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x < y
}
