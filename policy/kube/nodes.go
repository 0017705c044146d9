package kube

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/twill-net/twill/policy"
)

// node is a Node as it was read.
type node struct {
	metav1.TypeMeta
	policy.Node

	version string
}

// The numbers of a Node's fields that are read, beside those of all metadata.
const (
	nodeMetadata, nodeStatus = 1, 3
	statusAddresses          = 5
	addressText              = 2
)

// Reset is called before Unmarshal.
func (n *node) Reset() { *n = node{} }

// Unmarshal decodes a Node; the API's machinery calls it for events of a watch.
func (n *node) Unmarshal(b []byte) error {
	return fields(b, func(f field) error {
		switch f.number {
		case nodeMetadata:
			return fields(f.bytes, n.decodeMeta)
		case nodeStatus:
			return fields(f.bytes, n.decodeStatus)
		}
		return nil
	})
}

// DeepCopyObject implements runtime.Object.
func (n *node) DeepCopyObject() runtime.Object { c := *n; return &c }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (n *node) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.version}
}

func (n *node) decodeMeta(f field) error {
	switch f.number {
	case metaName:
		n.Name = string(f.bytes)
	case metaVersion:
		n.version = string(f.bytes)
	case metaLabels:
		key, value, err := decodeEntry(f.bytes)
		if n.Labels == nil {
			n.Labels = labels.Set{}
		}
		n.Labels[string(key)] = string(value)
		return err
	}
	return nil
}

// decodeStatus adds addresses; names of the node are none.
func (n *node) decodeStatus(f field) error {
	if f.number != statusAddresses {
		return nil
	}
	return fields(f.bytes, func(f field) error {
		if f.number == addressText {
			if addr, err := netip.ParseAddr(string(f.bytes)); err == nil {
				n.Addrs = append(n.Addrs, addr.Unmap())
			}
		}
		return nil
	})
}

// readNodes reads a NodeList.
func readNodes(from io.Reader) (*list[*node], error) {
	all := &list[*node]{}
	version, err := readList(from, func(item []byte) error {
		n := &node{}
		all.Items = append(all.Items, n)
		return n.Unmarshal(item)
	})
	if err != nil {
		return nil, fmt.Errorf("read the list: %w", err)
	}
	all.ResourceVersion = version
	return all, nil
}

var nodeResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// nodeKind reads Nodes, once a policy is about them: a Node has more than ten kB, and all agents would read all of them.
func (s *Source) nodeKind(to *state) kind {
	k := kind{GroupVersionResource: nodeResource}
	k.Example = &node{}
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.Limit = 0
		body, err := request(s.core, k.Resource, o).Stream(ctx)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return readNodes(body)
	}
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return watchRequest(s.core, k.Resource, o).Watch(ctx)
	}
	k.store = sink[*node, *node]{
		put:    func(n *node) { to.putNode(n.Node) },
		remove: func(n *node) { to.removeNode(n.Name) },
		replace: func(list []*node) {
			all := make([]policy.Node, len(list))
			for i, n := range list {
				all[i] = n.Node
			}
			to.replaceNodes(all)
		},
	}
	return k
}

func (s *state) putNode(n policy.Node) { put(s, &s.cluster.nodes, n.Name, n) }

// missNodes goes on without nodes, if there are none yet: rules about them fail closed, and everything else is told.
func (s *state) missNodes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.late = true
	if s.cluster.nodes.all == nil {
		s.notify()
	}
}

func (s *state) removeNode(name string) { remove(s, &s.cluster.nodes, name) }

func (s *state) replaceNodes(list []policy.Node) {
	all := make(map[string]policy.Node, len(list))
	for _, n := range list {
		all[n.Name] = n
	}
	replace(s, &s.cluster.nodes, all)
}
