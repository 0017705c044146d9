//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cluster"
)

const dns = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: twill-test-coredns}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: twill-test-coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: twill-test-coredns}
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
      kubernetes cluster.local
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {app: coredns}}
  template:
    metadata: {labels: {app: coredns}}
    spec:
      serviceAccountName: coredns
      terminationGracePeriodSeconds: 1
      dnsPolicy: Default
      containers:
      - name: coredns
        image: "` + cluster.DNSImage + `"
        args: [-conf, /etc/coredns/Corefile]
        readinessProbe: {httpGet: {port: 8181, path: /ready}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: ` + cluster.DNSAddress + `
  selector: {app: coredns}
  ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, port: 53}]
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: default}
spec: {clusterIP: None, ipFamilyPolicy: RequireDualStack, selector: {app: probe}, ports: [{port: 8080}]}
`

// TestDNS finds the addresses of all pods of a headless service, from every node, through CoreDNS in a pod.
func TestDNS(t *testing.T) {
	pods := probes(t)
	apply(t, dns)
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
	var want []string
	for _, p := range pods {
		for _, a := range p.Addrs {
			want = append(want, a.String())
		}
	}
	slices.Sort(want)
	for _, p := range pods {
		await(t, p.Node+" to find the headless service", 20*time.Second, func() (bool, error) {
			replies, err := spec.Probe(t.Context(), p.Name, "dns://headless", "dns://headless.default.svc.cluster.local")
			ok := err == nil
			for _, r := range replies {
				got := strings.Fields(r.Answer)
				slices.Sort(got)
				ok = ok && slices.Equal(got, want)
			}
			return ok, err
		})
	}
}
