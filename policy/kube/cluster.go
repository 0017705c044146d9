package kube

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/policy"
)

var clusterResource = schema.GroupVersionResource{
	Group: "policy.networking.k8s.io", Version: "v1alpha2", Resource: "clusternetworkpolicies",
}

// lookForAPI is how long a cluster without ClusterNetworkPolicies is left alone. All its agents ask.
const lookForAPI = 30 * time.Second

// believed is how often in a row an API server has to say that it has none, after it had some: one of several may be new.
const believed = 3

// errNoAPI is told while the cluster has none.
var errNoAPI = errors.New("the cluster has no ClusterNetworkPolicies (policy.networking.k8s.io/v1alpha2), " +
	"so none are enforced: they are looked for every half a minute")

func (s *Source) clusterKind(to *state) kind {
	k := kind{GroupVersionResource: clusterResource}
	k.Example = &policy.ClusterNetworkPolicy{}
	missing, known := 0, false
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if missing > 0 && !loop.Sleep(ctx, s.lookForAPI) {
			return nil, ctx.Err()
		}
		all := &list[policy.ClusterNetworkPolicy]{}
		err := request(s.clusterPolicies, k.Resource, fresh(o)).Do(ctx).Into(all)
		if !apierrors.IsNotFound(err) {
			missing, known = 0, known || err == nil
			return all, err
		}
		if missing++; !known || missing >= believed {
			to.replaceClusterPolicies(nil)
		}
		return nil, errNoAPI
	}
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return watchRequest(s.clusterPolicies, k.Resource, o).Watch(ctx)
	}
	k.store = sink[*policy.ClusterNetworkPolicy, *policy.ClusterNetworkPolicy]{
		to.putClusterPolicy, to.removeClusterPolicy, to.replaceClusterPolicies}
	return k
}

func (s *state) putClusterPolicy(p *policy.ClusterNetworkPolicy) {
	put(s, &s.cluster.policies, p.Name, trimmedCluster(p))
}

func (s *state) removeClusterPolicy(p *policy.ClusterNetworkPolicy) {
	remove(s, &s.cluster.policies, p.Name)
}

func (s *state) replaceClusterPolicies(list []*policy.ClusterNetworkPolicy) {
	all := make(map[string]*policy.ClusterNetworkPolicy, len(list))
	for _, p := range list {
		all[p.Name] = trimmedCluster(p)
	}
	replace(s, &s.cluster.policies, all)
}

// trimmedCluster is a policy without what is nobody's business here.
func trimmedCluster(p *policy.ClusterNetworkPolicy) *policy.ClusterNetworkPolicy {
	p.ManagedFields, p.Annotations, p.Status = nil, nil, nil
	return p
}
