// Package kube is the policy.Source on a Kubernetes API server: reflectors keep its NetworkPolicies, Namespaces and
// Pods up to date, and on demand its ClusterNetworkPolicies and, where one is about them, Nodes.
//
// There are thousands of times more pods than policies, and a Pod has several kB of which policies need a few hundred
// bytes. A list of them is decoded while it arrives, one at a time; of what is kept, pods of one template share their
// labels and ports. Pods in the host's network and those that have ended are not asked for.
//
// The rights that the source needs are list and watch on pods, namespaces and networkpolicies.networking.k8s.io; with
// ClusterNetworkPolicies also on nodes and clusternetworkpolicies.policy.networking.k8s.io.
package kube

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/policy"
)

// waitForNodes is how long the first policy about nodes holds up all changes until they are listed. They may never be, as
// where the rights to them lack.
const waitForNodes = 30 * time.Second

// Source keeps a policy.Snapshot in sync with the API server.
type Source struct {
	// Cluster is whether ClusterNetworkPolicies are followed. Set it before Watch.
	Cluster bool

	api             *kubeclient.Client
	core            *rest.RESTClient // Pods and Nodes
	policies        *rest.RESTClient
	clusterPolicies *rest.RESTClient
	progress        kubeclient.Progress
	lookForAPI      time.Duration
	state           *state
}

var _ policy.Source = (*Source)(nil)

// New connects to nothing yet. Waiting, if it is not nil, is called when a task is held up: once for each new reason,
// and with a nil error when it succeeds again. Tasks are "watch pods", "watch namespaces", "watch networkpolicies" and so
// on.
// Calls come from several goroutines, one at a time, and must return quickly.
func New(api *kubeclient.Client, waiting func(task string, err error)) (*Source, error) {
	s := &Source{api: api, progress: kubeclient.Progress{Waiting: waiting}, lookForAPI: lookForAPI, state: newState()}
	var err error
	if s.core, err = coreClient(api); err != nil {
		return nil, err
	}
	s.policies, err = policyClient(api, policyResource.GroupVersion(), policy.NetworkKind, &policy.NetworkPolicy{},
		&list[policy.NetworkPolicy]{})
	if err != nil {
		return nil, err
	}
	s.clusterPolicies, err = policyClient(api, clusterResource.GroupVersion(), policy.ClusterKind, &policy.ClusterNetworkPolicy{},
		&list[policy.ClusterNetworkPolicy]{})
	return s, err
}

// Watch implements policy.Source. It ends with ctx only.
func (s *Source) Watch(ctx context.Context, notify func()) error {
	to := s.state
	to.begin(notify, s.Cluster)
	kinds := []kind{s.podKind(to), s.namespaceKind(to), s.policyKind(to)}
	g, ctx := errgroup.WithContext(ctx)
	if s.Cluster {
		kinds = append(kinds, s.clusterKind(to))
		g.Go(func() error {
			select {
			case <-ctx.Done():
			case <-to.cluster.aboutNodes:
				defer time.AfterFunc(waitForNodes, to.missNodes).Stop()
				s.reflect(ctx, s.nodeKind(to))
			}
			return nil
		})
	}
	for _, k := range kinds {
		g.Go(func() error { s.reflect(ctx, k); return nil })
	}
	return g.Wait()
}

// Take implements policy.Source.
func (s *Source) Take() (policy.Change, bool) { return s.state.take() }
