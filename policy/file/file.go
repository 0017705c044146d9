// Package file is the Source of policies in manifests: for nodes without Kubernetes, and for labs.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// interval is how often the files are looked at.
const interval = 200 * time.Millisecond

// Source reads NetworkPolicies, Namespaces and Pods from a file, or from the *.yaml, *.yml and *.json files of a directory.
// A Pod needs its spec.nodeName and status.podIPs.
type Source struct {
	// Cluster is whether there are ClusterNetworkPolicies, which may be about Nodes. Set it before Watch.
	Cluster bool

	path   string
	report func(error)

	mu        sync.Mutex
	now, told *policy.Snapshot // as the files have it, and as it was taken last; nil: never
}

// New makes a Source. Report is told why the files cannot be read, and nil when they can be again.
func New(path string, report func(error)) *Source { return &Source{path: path, report: report} }

// Watch implements policy.Source. While the files cannot be read, what they said before holds. An object in them that cannot
// be read stays as it was; one that is new keeps all from being read.
func (s *Source) Watch(ctx context.Context, notify func()) error {
	var seen []byte
	var last *policy.Snapshot
	var unread error // objects in what was seen
	failing := ""
	for tick := time.NewTicker(interval); ; {
		text, err := read(s.path)
		if err == nil && (last == nil || !bytes.Equal(text, seen)) {
			var now policy.Snapshot
			if now, unread, err = parse(text, s.Cluster, last); err == nil {
				seen, last = text, &now
				s.set(last)
				notify()
			}
		}
		if err == nil {
			err = unread
		}
		switch {
		case err != nil && err.Error() != failing:
			failing = err.Error()
			s.report(fmt.Errorf("read network policies from %s: %w", s.path, err))
		case err == nil && failing != "":
			failing = ""
			s.report(nil)
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-tick.C:
		}
	}
}

// Read reads the files once, with ClusterNetworkPolicies and Nodes if cluster is true.
func Read(path string, cluster bool) (s policy.Snapshot, err error) {
	text, err := read(path)
	if err == nil {
		s, _, err = parse(text, cluster, nil)
	}
	if err != nil {
		err = fmt.Errorf("read network policies from %s: %w", path, err)
	}
	return s, err
}

// parse returns what the text says. Objects that cannot be read are in unread, and stay as they were in last; without one of
// them there, nothing can be said.
func parse(text []byte, cluster bool, last *policy.Snapshot) (s policy.Snapshot, unread, err error) {
	var objects manifest.Unread
	if err = manifest.Read(bytes.NewReader(text), &s); err != nil && !errors.As(err, &objects) {
		return s, nil, err
	}
	if !cluster {
		s.ClusterPolicies, s.Nodes = nil, nil
		objects = slices.DeleteFunc(objects, func(o manifest.Object) bool { return o.Kind == policy.ClusterKind || o.Kind == "Node" })
	}
	if len(objects) == 0 {
		return s, nil, nil
	}
	for _, o := range objects {
		if last == nil || !keep(o, last, &s) {
			return s, nil, objects
		}
	}
	return s, objects, nil
}

// keep adds an object as it was in the last snapshot, and reports whether it was there.
func keep(o manifest.Object, last, now *policy.Snapshot) bool {
	switch o.Kind {
	case policy.ClusterKind:
		return keepOne(&now.ClusterPolicies, last.ClusterPolicies, func(p policy.ClusterNetworkPolicy) bool { return p.Name == o.Name })
	case "Node":
		return keepOne(&now.Nodes, last.Nodes, func(n policy.Node) bool { return n.Name == o.Name })
	case "Namespace":
		set, ok := last.Namespaces[o.Name]
		if ok && now.Namespaces == nil {
			now.Namespaces = map[string]labels.Set{}
		}
		if ok {
			now.Namespaces[o.Name] = set
		}
		return ok
	}
	return keepOne(&now.Pods, last.Pods, func(p *policy.Pod) bool { return p.Namespace == o.Namespace && p.Name == o.Name })
}

// keepOne adds the one of last that is meant.
func keepOne[T any](now *[]T, last []T, meant func(T) bool) bool {
	i := slices.IndexFunc(last, meant)
	if i >= 0 {
		*now = append(*now, last[i])
	}
	return i >= 0
}

// mostPolicies bounds what is read of a file of manifests, in bytes.
const mostPolicies = 64 * smallfile.MB

// read returns all manifests as one document.
func read(path string) ([]byte, error) {
	paths := []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		paths = nil
		for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
			found, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return nil, err
			}
			paths = append(paths, found...)
		}
		slices.Sort(paths)
	}
	var all [][]byte
	for _, p := range paths {
		text, err := smallfile.Read(p, mostPolicies)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went while the directory was read
		}
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return bytes.Join(all, []byte("\n---\n")), nil
}

func (s *Source) set(now *policy.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

// Take implements policy.Source.
func (s *Source) Take() (policy.Change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, now := s.told, s.now
	if s.told = now; now == nil || now == was {
		return policy.Change{}, false
	}
	c := change(was, now)
	return c, c.Rules || len(c.Pods) > 0
}

// change returns what differs between two snapshots; the first may be nil.
func change(was, now *policy.Snapshot) policy.Change {
	change := policy.Change{Rules: was == nil, Snapshot: func() policy.Snapshot { return *now }}
	if was == nil {
		return change
	}
	rules := func(s policy.Snapshot) policy.Snapshot { s.Pods = nil; return s }
	change.Rules = !reflect.DeepEqual(rules(*was), rules(*now))
	before := byName(was.Pods)
	for name, p := range byName(now.Pods) {
		old := before[name]
		delete(before, name)
		if old == nil || !old.Equal(p) {
			change.Pods = append(change.Pods, policy.PodChange{Was: old, Now: p})
		}
	}
	for _, old := range before {
		change.Pods = append(change.Pods, policy.PodChange{Was: old})
	}
	return change
}

// byName returns the pods that policies can isolate.
func byName(pods []*policy.Pod) map[string]*policy.Pod {
	all := make(map[string]*policy.Pod, len(pods))
	for _, p := range pods {
		if (policy.Endpoint{Pod: p}).Selectable() {
			all[p.String()] = p
		}
	}
	return all
}
