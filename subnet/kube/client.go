package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/twill-net/twill/internal/kubeclient"
)

var (
	nodesResource  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	leasesResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// client makes the store's calls.
type client struct {
	*kubeclient.Client
	rest *rest.RESTClient // for what is not metadata
}

func newClient(shared *kubeclient.Client) (*client, error) {
	r, err := shared.REST(schema.GroupVersion{Version: "v1"}, func(cfg *rest.Config) {
		cfg.AcceptContentTypes, cfg.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	})
	if err != nil {
		return nil, err
	}
	return &client{shared, r}, nil
}

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

// node reads a Node. One that does not exist is a terminal error.
func (c *client) node(ctx context.Context, name string) (*node, error) {
	n := &node{}
	err := do(ctx, c.rest.Get().Resource("nodes").Name(name), kubeclient.CallTimeout, n)
	if apierrors.IsNotFound(err) {
		return nil, kubeclient.Terminal(fmt.Errorf("node %q does not exist: NODE_NAME, or the pod that POD_NAME and "+
			"POD_NAMESPACE name, must give the name of a Node object", name))
	}
	return n, kubeclient.Explain("get", "nodes", err)
}

// spec returns a Node's UID and podCIDRs as the API server has them in memory at the version or later.
func (c *client) spec(ctx context.Context, name, version string) (types.UID, string, error) {
	var n struct {
		Metadata struct{ UID types.UID }
		Spec     nodeSpec
	}
	r := c.rest.Get().Resource("nodes").Name(name).Param("resourceVersion", version)
	err := do(ctx, r.Throttle(flowcontrol.NewFakeAlwaysRateLimiter()), kubeclient.CallTimeout, &n)
	return n.Metadata.UID, n.Spec.podCIDRs(), err
}

// podNode returns the name of the node on which a pod runs.
func (c *client) podNode(ctx context.Context, namespace, name string) (string, error) {
	var pod struct{ Spec struct{ NodeName string } }
	const want = "POD_NAMESPACE and POD_NAME must name the agent's own pod"
	err := do(ctx, c.rest.Get().Namespace(namespace).Resource("pods").Name(name), kubeclient.CallTimeout, &pod)
	if apierrors.IsNotFound(err) {
		return "", kubeclient.Terminal(fmt.Errorf("pod %s/%s does not exist: %s", namespace, name, want))
	}
	if err == nil && pod.Spec.NodeName == "" {
		err = kubeclient.Terminal(fmt.Errorf("pod %s/%s has no spec.nodeName: %s", namespace, name, want))
	}
	return pod.Spec.NodeName, kubeclient.Explain("get", "pods", err)
}

// create creates an object.
func (c *client) create(ctx context.Context, r *rest.Request, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode an object: %w", err)
	}
	return do(ctx, r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body), kubeclient.CallTimeout, nil)
}

// patch patches an object, or its subresource.
func (c *client) patch(
	ctx context.Context, to metadata.ResourceInterface, name string, kind types.PatchType, patch any, sub ...string,
) error {
	ctx, cancel := context.WithTimeout(ctx, kubeclient.CallTimeout)
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
	err := c.patch(ctx, c.Metadata.Resource(nodesResource), node, kind, patch, "status")
	return kubeclient.Explain("patch", "nodes/status", err)
}
