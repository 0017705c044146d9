package cluster

import (
	"context"
	"fmt"
	"strings"
)

// dnsManifest is CoreDNS as a cluster's DNS, with the labels that kubeadm gives it, at an address that is to be filled
// in. It knows no other servers: nothing leaves the machine.
const dnsManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
      errors
      ready
      kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
      }
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      terminationGracePeriodSeconds: 1
      dnsPolicy: Default
      containers:
      - name: coredns
        image: "` + DNSImage + `"
        args: [-conf, /etc/coredns/Corefile]
        readinessProbe: {httpGet: {port: 8181, path: /ready}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: "%s"
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, port: 53}]
`

// InstallDNS runs the cluster's DNS in a pod and waits until it answers.
func (s Spec) InstallDNS(ctx context.Context) error {
	if err := s.Apply(ctx, s.dns()); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
	return err
}

// RemoveDNS removes what InstallDNS made, and waits until its pod is gone.
func (s Spec) RemoveDNS(ctx context.Context) error {
	_, err := s.KubectlIn(
		ctx,
		strings.NewReader(s.dns()),
		"delete",
		"--ignore-not-found",
		"--cascade=foreground",
		"--wait=true",
		"-f",
		"-",
	)
	return err
}

func (s Spec) dns() string { return fmt.Sprintf(dnsManifest, s.DNSAddress()) }
