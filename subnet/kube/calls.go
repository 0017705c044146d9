package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	nodesPath  = "api/v1/nodes"
	eventsPath = "api/v1/namespaces/default/events"
)

func nodePath(name string) string { return nodesPath + "/" + url.PathEscape(name) }

// getNode reads a Node with its status. One that does not exist is a refusal.
func (c *client) getNode(ctx context.Context, d lean, name string) (*node, error) {
	d.self = name
	body, err := c.read(ctx, call{method: http.MethodGet, path: nodePath(name), accept: asProto})
	if answered(err, http.StatusNotFound) {
		return nil, refusal{fmt.Errorf("node %q does not exist: NODE_NAME, or the pod that POD_NAME and POD_NAMESPACE name, must give the name of a Node object", name)}
	}
	if err != nil {
		return nil, explain("get", "nodes", err)
	}
	n, err := d.one(body)
	return n, explain("get", "nodes", err)
}

// leanNode reads of a Node what d keeps; nil: there is none. It is at least as new as version, which the API server has
// in memory.
func (c *client) leanNode(ctx context.Context, d lean, name, version string) (*node, error) {
	body, err := c.read(ctx, call{method: http.MethodGet, path: nodePath(name), accept: asProto, free: true,
		query: url.Values{"resourceVersion": {version}}})
	if answered(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, explain("get", "nodes", err)
	}
	n, err := d.one(body)
	return n, explain("get", "nodes", err)
}

// page is how many whole Nodes are asked for at a time: some 7 MB.
const page = "500"

// listNodes reads all Nodes, and of each what d keeps: as whole Nodes (asProto), page by page, or their metadata
// (asMetadataList). Empty version: as etcd has them now; "0": as the API server remembers them, on one page.
func (c *client) listNodes(ctx context.Context, d lean, as, version string) (*nodeList, error) {
	query := url.Values{}
	if version != "" {
		query.Set("resourceVersion", version)
	} else if as == asProto {
		query.Set("limit", page)
	}
	all, err := c.listPage(ctx, d, as, query)
	for err == nil && all.more != "" {
		query.Set("continue", all.more)
		var next *nodeList
		if next, err = c.listPage(ctx, d, as, query); err == nil {
			all.items, all.more = append(all.items, next.items...), next.more
		}
	}
	return all, err
}

// revision is the version of all Nodes as etcd has them now.
func (c *client) revision(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	one, err := c.listPage(ctx, lean{}, asMetadataList, url.Values{"limit": {"1"}})
	if err != nil {
		return "", err
	}
	return one.version, nil
}

func (c *client) listPage(ctx context.Context, d lean, as string, query url.Values) (*nodeList, error) {
	body, err := c.open(ctx, call{method: http.MethodGet, path: nodesPath, accept: as, query: query})
	if err != nil {
		return nil, explain("list", "nodes", err)
	}
	defer body.Close()
	list, err := d.list(body)
	return list, explain("list", "nodes", err)
}

// What asks for the metadata of objects: https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
const (
	asMetadata     = asProto + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asMetadataList = asProto + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// watchNodes watches the metadata of all Nodes, for at most so long, from a version on.
func (c *client) watchNodes(ctx context.Context, d lean, version string, most time.Duration) (*changes, error) {
	body, err := c.open(ctx, call{method: http.MethodGet, path: nodesPath, accept: asMetadata, query: url.Values{"watch": {"1"},
		"resourceVersion": {version}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(most.Seconds()))}}})
	if err != nil {
		return nil, explain("watch", "nodes", err)
	}
	return newChanges(d, body), nil
}

// podNode is the name of the node on which a pod runs.
func (c *client) podNode(ctx context.Context, namespace, name string) (string, error) {
	var pod struct{ Spec struct{ NodeName string } }
	path := "api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
	err := c.do(ctx, call{method: http.MethodGet, path: path}, &pod)
	if answered(err, http.StatusNotFound) {
		return "", refusal{fmt.Errorf("pod %s/%s does not exist: POD_NAMESPACE and POD_NAME must name the agent's own pod", namespace, name)}
	}
	if err == nil && pod.Spec.NodeName == "" {
		err = refusal{fmt.Errorf("pod %s/%s has no spec.nodeName: POD_NAMESPACE and POD_NAME must name the agent's own pod", namespace, name)}
	}
	return pod.Spec.NodeName, explain("get", "pods", err)
}

// patchStatus patches a node through its status subresource, which takes changes of the metadata too. kind is
// mergePatch or strategicPatch.
func (c *client) patchStatus(ctx context.Context, node, kind string, patch any) error {
	err := c.do(ctx, call{method: http.MethodPatch, path: nodePath(node) + "/status", kind: kind, body: patch}, nil)
	return explain("patch", "nodes/status", err)
}

func (c *client) createEvent(ctx context.Context, e any) error {
	return explain("create", "events", c.do(ctx, call{method: http.MethodPost, path: eventsPath, body: e}, nil))
}

func (c *client) patchEvent(ctx context.Context, name string, patch any) error {
	r := call{method: http.MethodPatch, path: eventsPath + "/" + url.PathEscape(name), kind: mergePatch, body: patch}
	return explain("patch", "events", c.do(ctx, r, nil))
}
