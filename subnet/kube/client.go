package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/twill-net/twill/subnet/redial"
)

// callTimeout bounds every call but the watch: an API server that accepts and then says nothing is an outage.
const callTimeout = 10 * time.Second

// client makes the few calls that the store needs, and turns their errors into sentences.
type client struct {
	rest   *rest.RESTClient
	reads  *rest.RESTClient // the same without a limit of requests per second
	leases *rest.RESTClient // coordination.k8s.io
	dialer *redial.Dialer
}

func newClient(cfg *rest.Config) (*client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath = "/api"
	cfg.GroupVersion = &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(newScheme()).WithoutConversion()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.UserAgent = "twilld"
	cfg.QPS, cfg.Burst = cmp.Or(cfg.QPS, 5), cmp.Or(cfg.Burst, 20)
	cfg.WarningHandler = rest.NoWarnings{}
	// A list of thousands of Nodes costs the API server a second of processor time to compress.
	cfg.DisableCompression = true
	dialer := &redial.Dialer{}
	cfg.Dial = dialer.DialContext
	pingSoon()
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	c := &client{dialer: dialer}
	var errs [3]error
	c.rest, errs[0] = rest.RESTClientForConfigAndClient(cfg, h)
	unlimited := rest.CopyConfig(cfg)
	unlimited.QPS = -1
	c.reads, errs[1] = rest.RESTClientForConfigAndClient(unlimited, h)
	cfg.APIPath, cfg.GroupVersion = "/apis", &coordinationv1.SchemeGroupVersion
	c.leases, errs[2] = rest.RESTClientForConfigAndClient(cfg, h)
	return c, errors.Join(errs[:]...)
}

// newScheme has the few types that are sent and received.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{}, &corev1.Event{}, &corev1.Pod{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	metav1.AddToGroupVersion(scheme, coordinationv1.SchemeGroupVersion)
	scheme.AddKnownTypes(metav1.SchemeGroupVersion, &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{})
	return scheme
}

// pingSoon has client-go ask after ten silent seconds whether the connection still carries, and give it up after five
// more, instead of 30 and 15; the environment is the only way to say it. An operator's word goes first.
func pingSoon() {
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value)
		}
	}
}

// bound gives ctx the timeout of one call, and takes client-go's log of slow calls away: callers report errors.
func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(klog.NewContext(ctx, logr.Discard()), callTimeout)
}

// once keeps client-go from trying again by itself where it was told 429: the store does, and says why it waits.
func once(r *rest.Request) *rest.Request { return r.MaxRetries(0) }

func (c *client) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	n := &corev1.Node{}
	err := once(c.rest.Get()).Resource("nodes").Name(name).Do(ctx).Into(n)
	if apierrors.IsNotFound(err) {
		return nil, refusal{fmt.Errorf("node %q does not exist: NODE_NAME, or the pod that POD_NAME and POD_NAMESPACE name, must give the name of a Node object", name)}
	}
	return n, explain("get", "nodes", err)
}

func (c *client) podNode(ctx context.Context, namespace, name string) (string, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	p := &corev1.Pod{}
	err := c.rest.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(p)
	if apierrors.IsNotFound(err) {
		return "", refusal{fmt.Errorf("pod %s/%s does not exist: POD_NAMESPACE and POD_NAME must name the agent's own pod", namespace, name)}
	}
	if err == nil && p.Spec.NodeName == "" {
		err = refusal{fmt.Errorf("pod %s/%s has no spec.nodeName: POD_NAMESPACE and POD_NAME must name the agent's own pod", namespace, name)}
	}
	return p.Spec.NodeName, explain("get", "pods", err)
}

// patchStatus patches a node through its status subresource, which takes changes of the metadata too.
func (c *client) patchStatus(ctx context.Context, node string, kind types.PatchType, patch any) error {
	return c.patch(ctx, node, "status", kind, patch)
}

// patch patches a node, or a subresource of it.
func (c *client) patch(ctx context.Context, node, subresource string, kind types.PatchType, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch of node %q: %w", node, err)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	what := "nodes"
	r := once(c.rest.Patch(kind)).Resource("nodes").Name(node)
	if subresource != "" {
		what += "/" + subresource
		r = r.SubResource(subresource)
	}
	return explain("patch", what, r.Body(body).Do(ctx).Error())
}

func (c *client) createEvent(ctx context.Context, e *corev1.Event) error {
	ctx, cancel := bound(ctx)
	defer cancel()
	err := c.rest.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	return explain("create", "events", err)
}

func (c *client) patchEvent(ctx context.Context, namespace, name string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch of event %q: %w", name, err)
	}
	ctx, cancel := bound(ctx)
	defer cancel()
	err = c.rest.Patch(types.MergePatchType).Namespace(namespace).Resource("events").Name(name).Body(body).Do(ctx).Error()
	return explain("patch", "events", err)
}

// listNodes reads all Nodes in one answer, and of each what d keeps.
func (c *client) listNodes(ctx context.Context, d lean, o metav1.ListOptions) (*corev1.NodeList, error) {
	body, err := once(c.rest.Get()).Resource("nodes").VersionedParams(&o, metav1.ParameterCodec).SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
	if err != nil {
		return nil, explain("list", "nodes", err)
	}
	defer body.Close()
	list, err := d.list(body)
	return list, explain("list", "nodes", err)
}

// leanNode reads of a Node what d keeps; nil: there is none. It is at least as new as version, which the API server has
// in memory.
func (c *client) leanNode(ctx context.Context, d lean, name, version string) (*corev1.Node, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	body, err := c.reads.Get().Resource("nodes").Name(name).Param("resourceVersion", version).
		SetHeader("Accept", runtime.ContentTypeProtobuf).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain("get", "nodes", err)
	}
	n, err := d.one(body)
	return n, explain("get", "nodes", err)
}

// asMetadata asks for a PartialObjectMetadata of each object: https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
const asMetadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// watchNodes watches the metadata of all Nodes.
func (c *client) watchNodes(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	r := once(c.rest.Get()).Resource("nodes").VersionedParams(&o, metav1.ParameterCodec).SetHeader("Accept", asMetadata)
	if o.TimeoutSeconds != nil {
		r = r.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	w, err := r.Watch(ctx)
	return w, explain("watch", "nodes", err)
}

// explain says in a sentence what the API server did not do; errors that waiting does not mend become refusals.
func explain(verb, resource string, err error) error {
	switch {
	case err == nil || refused(err):
		return err
	case apierrors.IsForbidden(err):
		return refusal{fmt.Errorf("the API server forbids %s on %s: %w", verb, resource, err)}
	case apierrors.IsUnauthorized(err):
		return refusal{fmt.Errorf("the API server does not know the credentials for %s on %s: %w", verb, resource, err)}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		return refusal{fmt.Errorf("%s %s: %w", verb, resource, err)}
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}
