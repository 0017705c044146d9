package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/twill-net/twill/internal/kubeclient"
)

// kind is one of the kinds of objects that are watched.
type kind struct {
	schema.GroupVersionResource
	kubeclient.Reflection
	store cache.ReflectorStore
}

// reflect keeps a kind in sync until ctx is done.
func (s *Source) reflect(ctx context.Context, k kind) {
	from := k.Reflection
	from.Name = k.Resource
	from.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		limited, cancel := context.WithTimeout(ctx, kubeclient.ListTimeout)
		defer cancel()
		list, err := k.List(limited, o)
		if err != nil {
			return nil, s.report(ctx, k, "list", err)
		}
		return list, nil
	}
	from.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := s.watch(ctx, k, o)
		return w, s.report(ctx, k, "watch", err)
	}
	kubeclient.Reflect(ctx, from, k.store)
}

// watch starts a watch, or makes the reflector list again if the API server was restored from a backup: the watch would
// begin at a revision of the future, and send nothing.
func (s *Source) watch(ctx context.Context, k kind, o metav1.ListOptions) (watch.Interface, error) {
	now, err := s.api.Revision(ctx, k.GroupVersionResource, "")
	if err != nil {
		return nil, err
	}
	if kubeclient.Older(now, o.ResourceVersion) {
		return nil, apierrors.NewResourceExpired("the API server was restored from a backup")
	}
	return k.Watch(ctx, o)
}

// report reports that something holds up the task of a kind, or nothing, and returns what. That the API server has no
// longer the history to go on from is no hindrance: all is listed again.
func (s *Source) report(ctx context.Context, k kind, verb string, err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return err
	}
	if err = kubeclient.Explain(verb, k.Resource, err); apierrors.IsForbidden(err) {
		resource := k.GroupResource()
		err = fmt.Errorf("%w: a ClusterRole of the agent must have the verbs list and watch on %s", err, resource.String())
	}
	if ctx.Err() == nil {
		s.progress.Report("watch "+k.Resource, err)
	}
	return err
}

// newScheme returns a scheme for objects of a group that names the types that every group has.
func newScheme(group schema.GroupVersion) *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, group)
	return scheme
}

// request prepares a list or a watch in all namespaces. The reflector makes it again if it fails.
func request(c *rest.RESTClient, resource string, o metav1.ListOptions) *rest.Request {
	return c.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0)
}

func watchRequest(c *rest.RESTClient, resource string, o metav1.ListOptions) *rest.Request {
	o.Watch = true
	return request(c, resource, o)
}

// list is what a reflector takes for a list; its elements are on their way to the state.
type list[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []T `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *list[T]) DeepCopyObject() runtime.Object { c := *l; return &c }

// sink is a store of a reflector, for what events bring and for what lists do.
type sink[E, L any] struct {
	put, remove func(E)
	replace     func([]L)
}

// Add implements cache.ReflectorStore.
func (s sink[E, _]) Add(obj any) error { s.put(obj.(E)); return nil }

// Update implements cache.ReflectorStore.
func (s sink[E, _]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s sink[E, _]) Delete(obj any) error { s.remove(obj.(E)); return nil }

// Replace implements cache.ReflectorStore.
func (s sink[_, L]) Replace(objs []any, _ string) error {
	all := make([]L, len(objs))
	for i, obj := range objs {
		all[i] = obj.(L)
	}
	s.replace(all)
	return nil
}

// Resync implements cache.ReflectorStore.
func (s sink[_, _]) Resync() error { return nil }
