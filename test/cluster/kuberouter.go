package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// kubeRouterImage is kube-router's engine of NetworkPolicies as tools/kube-router builds it and k3s embeds it.
// It works with iptables and ipset in the chain FORWARD.
const kubeRouterImage = "localhost/kube-router:1"

// kubeRouter is the manifest; kube-router refuses to start where a node has no address of a family it is told of.
func (s Spec) kubeRouter() string {
	networks := strings.ReplaceAll(join(s.inFamilies(ServiceNetworks)), ",", `", "`)
	return strings.ReplaceAll(kubeRouterManifest, "NETWORKS", `"`+networks+`"`)
}

const kubeRouterManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-router, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kube-router}
rules:
- {apiGroups: [""], resources: [nodes, pods, namespaces, services], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-router}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kube-router}
subjects: [{kind: ServiceAccount, name: kube-router, namespace: kube-system}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-router, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kube-router}}
  template:
    metadata: {labels: {app: kube-router}}
    spec:
      serviceAccountName: kube-router
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers:
      - name: kube-router
        image: "` + kubeRouterImage + `"
        args: [NETWORKS]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
`

// InstallKubeRouter runs that engine on every node, and waits until it runs. It may enforce nothing yet.
func (s Spec) InstallKubeRouter(ctx context.Context) error {
	root, err := checkout()
	if err != nil {
		return err
	}
	i := Image{Name: kubeRouterImage, Entry: []string{"/kube-router"}}
	err = errors.Join(
		i.Add(ctx, "/kube-router", filepath.Join(root, "bin", "kube-router")),
		i.Add(ctx, "/usr/sbin/ipset", "/usr/sbin/ipset"),
		i.AddIPTables(ctx),
	)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kube-router-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "image.tar")
	if err := i.Write(archive); err != nil {
		return err
	}
	for n := 1; n <= s.Nodes; n++ {
		if err := s.Import(ctx, s.NodeName(n), archive); err != nil {
			return fmt.Errorf("import kube-router on node %d: %w", n, err)
		}
	}
	if err := s.Apply(ctx, s.kubeRouter()); err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, "--namespace=kube-system", "rollout", "status", "daemonset/kube-router", "--timeout=90s")
	return err
}

// RemoveKubeRouter stops the engine. Its rules stay, as they do wherever it was.
func (s Spec) RemoveKubeRouter(ctx context.Context) error {
	_, err := s.KubectlIn(ctx, strings.NewReader(s.kubeRouter()), "delete", "--ignore-not-found", "--wait=true", "-f", "-")
	return err
}
