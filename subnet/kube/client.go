package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/twill-net/twill/subnet/redial"
)

// callTimeout bounds every call but watches: an API server that accepts and then says nothing is an outage.
const callTimeout = 10 * time.Second

// listTimeout bounds a list.
const listTimeout = time.Minute

var (
	nodesResource  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	leasesResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// client makes the store's calls.
type client struct {
	http     *http.Client // of the two others
	metadata metadata.Interface
	rest     *rest.RESTClient // for what is not metadata
	dialer   *redial.Dialer
}

func newClient(cfg *rest.Config) (*client, error) {
	c := &client{dialer: &redial.Dialer{}}
	cfg = metadata.ConfigFor(cfg)
	cfg.UserAgent = "twilld"
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.DisableCompression = true // it costs the API server a second for a list of thousands of Nodes
	cfg.Dial = c.dialer.DialContext
	if cfg.QPS == 0 {
		cfg.QPS, cfg.Burst = 5, 20
	}
	pingIdleConnections()
	silenceKlog()
	var err error
	if c.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	if c.metadata, err = metadata.NewForConfigAndClient(cfg, c.http); err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	cfg.APIPath, cfg.GroupVersion = "/api", &schema.GroupVersion{Version: "v1"}
	cfg.AcceptContentTypes, cfg.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if c.rest, err = rest.RESTClientForConfigAndClient(cfg, c.http); err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	return c, nil
}

// pingIdleConnections makes client-go check a connection after ten silent seconds and close it after five more, instead
// of 30 and 15. The environment is the only way to set this; an operator's values go first.
func pingIdleConnections() {
	for name, value := range map[string]string{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5",
	} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value)
		}
	}
}

// silenceKlog discards what client-go logs: the store reports the errors itself.
var silenceKlog = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })

// do makes a call and decodes the answer's JSON into v, unless v is nil.
func do(ctx context.Context, r *rest.Request, timeout time.Duration, v any) error {
	result := r.MaxRetries(0).Timeout(timeout).Do(ctx) // the store repeats calls itself, and says why
	if err := result.Error(); err != nil || v == nil {
		return err
	}
	body, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

// node is what the store reads of a Node.
type node struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              nodeSpec
	Status            struct {
		Addresses  []struct{ Type, Address string }
		Conditions []struct {
			Type string
			condition
		}
	}
}

type nodeSpec struct {
	PodCIDR  string // the first of PodCIDRs, and alone on clusters before 1.20
	PodCIDRs []string
}

// podCIDRs returns the podCIDRs, separated by commas.
func (s nodeSpec) podCIDRs() string {
	if len(s.PodCIDRs) == 0 {
		return s.PodCIDR
	}
	return strings.Join(s.PodCIDRs, ",")
}

// condition is what the store writes of the condition NetworkUnavailable.
type condition struct{ Status, Reason, Message string }

// node reads a Node. One that does not exist is a terminal error.
func (c *client) node(ctx context.Context, name string) (*node, error) {
	n := &node{}
	err := do(ctx, c.rest.Get().Resource("nodes").Name(name), callTimeout, n)
	if apierrors.IsNotFound(err) {
		return nil, terminalError{fmt.Errorf("node %q does not exist: NODE_NAME, or the pod that POD_NAME and "+
			"POD_NAMESPACE name, must give the name of a Node object", name)}
	}
	return n, explain("get", "nodes", err)
}

// spec returns a Node's UID and podCIDRs as the API server has them in memory at the version or later.
func (c *client) spec(ctx context.Context, name, version string) (types.UID, string, error) {
	var n struct {
		Metadata struct{ UID types.UID }
		Spec     nodeSpec
	}
	r := c.rest.Get().Resource("nodes").Name(name).Param("resourceVersion", version)
	err := do(ctx, r.Throttle(flowcontrol.NewFakeAlwaysRateLimiter()), callTimeout, &n)
	return n.Metadata.UID, n.Spec.podCIDRs(), err
}

// revision returns the resource version of the Nodes as etcd has them now.
func (c *client) revision(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	one, err := c.metadata.Resource(nodesResource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", explain("list", "nodes", err)
	}
	return one.ResourceVersion, nil
}

// podNode returns the name of the node on which a pod runs.
func (c *client) podNode(ctx context.Context, namespace, name string) (string, error) {
	var pod struct{ Spec struct{ NodeName string } }
	const want = "POD_NAMESPACE and POD_NAME must name the agent's own pod"
	err := do(ctx, c.rest.Get().Namespace(namespace).Resource("pods").Name(name), callTimeout, &pod)
	if apierrors.IsNotFound(err) {
		return "", terminalError{fmt.Errorf("pod %s/%s does not exist: %s", namespace, name, want)}
	}
	if err == nil && pod.Spec.NodeName == "" {
		err = terminalError{fmt.Errorf("pod %s/%s has no spec.nodeName: %s", namespace, name, want)}
	}
	return pod.Spec.NodeName, explain("get", "pods", err)
}

// create creates an object.
func (c *client) create(ctx context.Context, r *rest.Request, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode an object: %w", err)
	}
	return do(ctx, r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body), callTimeout, nil)
}

// patch patches an object, or its subresource.
func (c *client) patch(
	ctx context.Context, to metadata.ResourceInterface, name string, kind types.PatchType, patch any, sub ...string,
) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch of %s: %w", name, err)
	}
	_, err = to.Patch(ctx, name, kind, data, metav1.PatchOptions{}, sub...)
	return err
}

// patchStatus patches a node through its status subresource, which takes changes of the metadata too.
func (c *client) patchStatus(ctx context.Context, node string, kind types.PatchType, patch any) error {
	err := c.patch(ctx, c.metadata.Resource(nodesResource), node, kind, patch, "status")
	return explain("patch", "nodes/status", err)
}

// terminalError is an error that waiting does not mend.
type terminalError struct{ error }

func (e terminalError) Unwrap() error { return e.error }

func isTerminal(err error) bool { return errors.As(err, new(terminalError)) }

// explain says in a sentence what the API server did not do. Errors that waiting does not mend become terminal.
func explain(verb, resource string, err error) error {
	switch {
	case err == nil || isTerminal(err):
		return err
	case apierrors.IsForbidden(err):
		return terminalError{fmt.Errorf("the API server forbids %s on %s: %w", verb, resource, err)}
	case apierrors.IsUnauthorized(err):
		return terminalError{
			fmt.Errorf("the API server does not know the credentials for %s on %s: %w", verb, resource, err)}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err):
		return terminalError{fmt.Errorf("%s %s: %w", verb, resource, err)}
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}
