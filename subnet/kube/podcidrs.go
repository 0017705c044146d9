package kube

import (
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/kubeclient"
)

// podCIDRs remembers the podCIDRs of Nodes by their UIDs. The API server lets a Node's podCIDRs be written once, so
// they hold for the life of the Node and over restarts of the agent. Only an API server that was restored from a
// backup can contradict them: then its revision goes back, and all are forgotten.
type podCIDRs struct {
	mu       sync.Mutex
	revision revision
	byUID    map[types.UID]string // as in record
}

// checkpoint is podCIDRs in the agent's checkpoint.
type checkpoint struct {
	Revision string
	PodCIDRs map[types.UID]string
}

// Checkpoint implements subnet.Checkpointer.
func (s *Store) Checkpoint() json.RawMessage {
	s.podCIDRs.mu.Lock()
	defer s.podCIDRs.mu.Unlock()
	data, err := json.Marshal(checkpoint{string(s.podCIDRs.revision), s.podCIDRs.byUID})
	if err != nil {
		return nil
	}
	return data
}

// Restore implements subnet.Checkpointer.
func (s *Store) Restore(data json.RawMessage) {
	var from checkpoint
	if json.Unmarshal(data, &from) != nil {
		return
	}
	s.podCIDRs.mu.Lock()
	defer s.podCIDRs.mu.Unlock()
	s.podCIDRs.revision, s.podCIDRs.byUID = revision(from.Revision), from.PodCIDRs
}

// empty reports whether nothing is known.
func (p *podCIDRs) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byUID) == 0
}

// get returns the podCIDRs of the Node with this UID, empty if they are not known.
func (p *podCIDRs) get(uid types.UID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byUID[uid]
}

// put remembers the podCIDRs of a Node, if it has any.
func (p *podCIDRs) put(uid types.UID, podCIDRs string) {
	if podCIDRs == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byUID == nil {
		p.byUID = map[types.UID]string{}
	}
	p.byUID[uid] = podCIDRs
}

func (p *podCIDRs) remove(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byUID, uid)
}

// retain forgets all Nodes but these.
func (p *podCIDRs) retain(nodes []record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := make(map[types.UID]string, len(nodes))
	for _, n := range nodes {
		if cidrs, ok := p.byUID[n.uid]; ok {
			left[n.uid] = cidrs
		}
	}
	p.byUID = left
}

// rewound notes the revision that the API server is at, and reports whether that is older than one seen before: then
// what is known does not hold.
func (p *podCIDRs) rewound(now string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	back := p.revision.rewound(now)
	if back {
		p.byUID = nil
	}
	return back
}

// advance notes that the API server is at the revision at least.
func (p *podCIDRs) advance(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision.advance(to)
}

// at returns the newest revision that was seen.
func (p *podCIDRs) at() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.revision)
}

// revision is the newest revision of the API server that was seen, empty at first.
type revision string

// rewound notes the revision that the API server is at, and reports whether that is older than one seen before: then it
// was restored from a backup.
func (r *revision) rewound(now string) bool {
	back := kubeclient.Older(now, string(*r))
	*r = revision(now)
	return back
}

func (r *revision) advance(to string) {
	if kubeclient.Older(string(*r), to) {
		*r = revision(to)
	}
}
