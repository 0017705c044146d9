package scale

import (
	"context"
	"net/http"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/redial"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/kube"
)

// countOf has a client's calls counted.
func (m *member) countOf(c *http.Client) { c.Transport = counted{c.Transport, &m.callCounter} }

// followStore follows leases as twilld does.
func (m *member) followStore(ctx context.Context) error {
	s, err := kube.New(ctx, kube.Options{Kubeconfig: m.herd.cluster.server.KubeconfigFile(agentUser), Node: Name(m.node),
		Pools: m.herd.pools, Store: m.herd.how, LeaseNamespace: space, Waiting: m.waiting})
	if err != nil {
		return err
	}
	m.countOf(s.Client().HTTP)
	if m.checkpoint != nil {
		s.Restore(m.checkpoint)
	}
	defer func() { m.checkpoint = s.Checkpoint(); s.Redial() }()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { _, err := s.Acquire(ctx, published(m.node)); return err })
	g.Go(func() error { return s.Watch(ctx, m.told) })
	return g.Wait()
}

// followClientGo follows the metadata of Nodes by a reflector that has client-go's defaults.
func (m *member) followClientGo(ctx context.Context) error {
	cfg, err := kubeclient.Server{Kubeconfig: m.herd.cluster.server.KubeconfigFile(agentUser)}.Config()
	if err != nil {
		return err
	}
	dialer := &redial.Dialer{} // without one of its own it would share others' connections
	defer dialer.Redial()
	cfg = metadata.ConfigFor(cfg)
	cfg.Dial = dialer.DialContext
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	m.countOf(client)
	api, err := metadata.NewForConfigAndClient(cfg, client)
	if err != nil {
		return err
	}
	nodes := api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}
	names := &nodeNames{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), m: m}
	cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, names, cache.ReflectorOptions{}).RunWithContext(ctx)
	return nil
}

// nodeNames tells a member of the nodes that there are, by name alone.
type nodeNames struct {
	cache.Store
	m *member
}

func (n *nodeNames) tell() {
	var s subnet.Snapshot
	for _, name := range n.ListKeys() {
		if name != Name(n.m.node) {
			s.Peers = append(s.Peers, subnet.Lease{Node: name})
		}
	}
	n.m.told(s)
}

// Add implements cache.ReflectorStore.
func (n *nodeNames) Add(obj any) error { defer n.tell(); return n.Store.Add(obj) }

// Delete implements cache.ReflectorStore.
func (n *nodeNames) Delete(obj any) error { defer n.tell(); return n.Store.Delete(obj) }

// Replace implements cache.ReflectorStore.
func (n *nodeNames) Replace(all []any, version string) error {
	defer n.tell()
	return n.Store.Replace(all, version)
}
