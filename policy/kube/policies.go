package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/policy"
)

var policyResource = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}

// policyClient returns a client for policies of a kind, which are few and read as JSON.
func policyClient(api *kubeclient.Client, group schema.GroupVersion, kind string, example, list runtime.Object) (*rest.RESTClient, error) {
	scheme := newScheme(group)
	scheme.AddKnownTypeWithName(group.WithKind(kind), example)
	scheme.AddKnownTypeWithName(group.WithKind(kind+"List"), list)
	return api.REST(group, func(cfg *rest.Config) {
		cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		cfg.AcceptContentTypes, cfg.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	})
}

func (s *Source) policyKind(to *state) kind {
	k := kind{GroupVersionResource: policyResource}
	k.Example = &policy.NetworkPolicy{}
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		all := &list[policy.NetworkPolicy]{}
		return all, request(s.policies, k.Resource, fresh(o)).Do(ctx).Into(all)
	}
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return watchRequest(s.policies, k.Resource, o).Watch(ctx)
	}
	k.store = sink[*policy.NetworkPolicy, *policy.NetworkPolicy]{to.putPolicy, to.removePolicy, to.replacePolicies}
	return k
}

// namespaceKind reads the metadata of Namespaces, which has all that matters.
func (s *Source) namespaceKind(to *state) kind {
	k := kind{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}
	api := s.api.Metadata.Resource(k.GroupVersionResource)
	k.Example = &metav1.PartialObjectMetadata{}
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return api.List(ctx, fresh(o))
	}
	k.Watch = api.Watch
	type meta = *metav1.PartialObjectMetadata
	k.store = sink[meta, meta]{
		put:    func(m meta) { to.putNamespace(m.Name, m.Labels) },
		remove: func(m meta) { to.removeNamespace(m.Name) },
		replace: func(list []meta) {
			all := make(map[string]labels.Set, len(list))
			for _, m := range list {
				all[m.Name] = m.Labels
			}
			to.replaceNamespaces(all)
		},
	}
	return k
}

// fresh makes the first list show what etcd has: an API server that lags behind would bring back policies that are
// gone.
func fresh(o metav1.ListOptions) metav1.ListOptions {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	return o
}
