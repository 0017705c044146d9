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

// clusterPolicy is a policy.ClusterNetworkPolicy as the API's machinery takes it.
type clusterPolicy struct{ policy.ClusterNetworkPolicy }

// DeepCopyObject implements runtime.Object. Specs are not altered, so copies share them.
func (p *clusterPolicy) DeepCopyObject() runtime.Object {
	c := *p
	p.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// clusterPolicyList is a list of them.
type clusterPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []clusterPolicy `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *clusterPolicyList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = make([]clusterPolicy, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*clusterPolicy)
	}
	return &c
}

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
	k.Example = &clusterPolicy{}
	missing, known := 0, false
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if missing > 0 && !loop.Sleep(ctx, s.lookForAPI) {
			return nil, ctx.Err()
		}
		list := &clusterPolicyList{}
		err := request(s.clusterPolicies, k.Resource, fresh(o)).Do(ctx).Into(list)
		if !apierrors.IsNotFound(err) {
			missing, known = 0, known || err == nil
			return list, err
		}
		if missing++; !known || missing >= believed {
			to.replaceClusterPolicies(nil)
		}
		return nil, errNoAPI
	}
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return watchRequest(s.clusterPolicies, k.Resource, o).Watch(ctx)
	}
	k.store = sink{
		put:    func(obj any) { to.putClusterPolicy(&obj.(*clusterPolicy).ClusterNetworkPolicy) },
		remove: func(obj any) { to.removeClusterPolicy(obj.(*clusterPolicy).Name) },
		replace: func(list []any) {
			all := make([]*policy.ClusterNetworkPolicy, len(list))
			for i, obj := range list {
				all[i] = &obj.(*clusterPolicy).ClusterNetworkPolicy
			}
			to.replaceClusterPolicies(all)
		},
	}
	return k
}

func (s *state) putClusterPolicy(p *policy.ClusterNetworkPolicy) {
	put(s, &s.cluster.policies, p.Name, trimmedCluster(p))
}

func (s *state) removeClusterPolicy(name string) { remove(s, &s.cluster.policies, name) }

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
