package kubeclient

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Reflection is how the objects of one kind are listed and watched.
type Reflection struct {
	Name    string
	Example runtime.Object // of the type that List and Watch return
	List    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Reflect keeps a store in sync with the API server until ctx is done. It lists and watches again after every error;
// List and Watch report them.
func Reflect(ctx context.Context, from Reflection, to cache.ReflectorStore) {
	lw := &cache.ListWatch{ListWithContextFunc: from.list, WatchFuncWithContext: from.Watch}
	backoff := Backoff()
	o := cache.ReflectorOptions{Name: from.Name, Backoff: &backoff}
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, noWatchList{}), from.Example, to, o)
	r.RunWithContext(ctx)
}

// list lists objects that are as of a version or newer in one page. Of a list with a limit the API server takes the version
// for exactly that one, and client-go sets a limit when an earlier list came in pages. If a watch cannot be resumed from
// that version, it can be neither from the list.
func (r Reflection) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion != "" && o.ResourceVersion != "0" {
		o.Limit = 0
	}
	return r.List(ctx, o)
}

// noWatchList makes the reflector list: thousands of single events cost ten times as much as a list.
type noWatchList struct{}

// IsWatchListSemanticsUnSupported is what client-go asks.
func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// Revision returns the resource version that a kind of objects has in etcd now; it is asked in a namespace, or if that is
// empty in all.
func (c *Client) Revision(ctx context.Context, of schema.GroupVersionResource, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	one, err := c.Metadata.Resource(of).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", Explain("list", of.Resource, err)
	}
	return one.ResourceVersion, nil
}

// Older reports whether one resource version is older than another. It is false if one of them is empty.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
