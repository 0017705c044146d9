package kube

import (
	"crypto/sha256"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/twill-net/twill/policy"
)

// entry is a pod as it is kept.
type entry struct {
	policy.Pod
	of *template
}

// GetObjectKind and DeepCopyObject let an entry be an element of a list of the API's machinery.
func (e *entry) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (e *entry) DeepCopyObject() runtime.Object { c := *e; return &c }

// template is what pods that were made of one have in common.
type template struct {
	key    [sha256.Size]byte // of its encoding, which would be as large as all the rest
	labels labels.Set
	ports  []policy.Port
	pods   int // how many have it
}

// shared are the templates and texts that several pods have. The zero value is ready.
type shared struct {
	mu        sync.Mutex
	templates map[[sha256.Size]byte]*template
	texts     map[string]string
}

// maxTexts bounds the names of namespaces, nodes and labels that are remembered. What is forgotten is only no longer
// shared with what comes later.
const maxTexts = 20_000

// text returns a string that is shared with all who ask for the same.
func (s *shared) text(b []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.textLocked(b)
}

func (s *shared) textLocked(b []byte) string {
	if t, ok := s.texts[string(b)]; ok {
		return t
	}
	if s.texts == nil || len(s.texts) >= maxTexts {
		s.texts = map[string]string{}
	}
	t := string(b)
	s.texts[t] = t
	return t
}

// entry makes an entry of a pod. Who does not keep it must release it.
func (s *shared) entry(p *pod) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sha256.Sum256(p.template)
	t, ok := s.templates[key]
	if !ok {
		t = &template{key: key}
		t.labels, t.ports = decodeTemplate(p.template, s.textLocked)
		if s.templates == nil {
			s.templates = map[[sha256.Size]byte]*template{}
		}
		s.templates[t.key] = t
	}
	t.pods++
	e := &entry{p.Pod, t}
	e.Labels, e.Ports = t.labels, t.ports
	return e
}

// release gives up an entry; changes may still show its pod.
func (s *shared) release(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.of.pods--; e.of.pods == 0 {
		delete(s.templates, e.of.key)
	}
}
