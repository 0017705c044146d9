//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

const headless = `apiVersion: v1
kind: Service
metadata: {name: headless, namespace: default}
spec: {clusterIP: None, ipFamilyPolicy: RequireDualStack, selector: {app: probe}, ports: [{port: 8080}]}
`

// TestDNS finds the addresses of all pods of a headless service, from every node, through CoreDNS in a pod.
func TestDNS(t *testing.T) {
	pods := probes(t)
	apply(t, headless)
	t.Cleanup(func() { must(t, spec.RemoveDNS(context.Background())) })
	must(t, spec.InstallDNS(t.Context()))
	var want []string
	for _, p := range pods {
		for _, a := range p.Addrs {
			want = append(want, a.String())
		}
	}
	slices.Sort(want)
	for _, p := range pods {
		await(t, p.Node+" to find the headless service", testwait.Limit, func() (bool, error) {
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
