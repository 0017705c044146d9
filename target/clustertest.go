package target

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor"
)

// maxTested is how many pods of a node the others ping.
const maxTested = 2

// Test has all agents test what they reach, and joins the tables.
func (c cluster) Test(ctx context.Context, g Goals) (doctor.Connectivity, error) {
	tested := doctor.Connectivity{Schema: doctor.Schema, Cells: []doctor.Cell{}}
	began := time.Now()
	pods, err := c.pods(ctx, "--all-namespaces", "--field-selector=status.phase=Running")
	if err != nil {
		return tested, err
	}
	perNode := map[string]int{}
	for _, p := range pods {
		if p.Spec.HostNetwork || perNode[p.Spec.NodeName] == maxTested {
			continue
		}
		perNode[p.Spec.NodeName]++
		for _, ip := range p.Status.PodIPs {
			g.Pods = append(g.Pods, ip.IP)
		}
	}
	services, err := c.services(ctx)
	if err != nil {
		return tested, err
	}
	g.Services, g.DNS = slices.Concat(g.Services, services.api), slices.Concat(g.DNS, services.dns)
	answers, err := ask(ctx, c.fan, func(n Node) (doctor.Connectivity, error) { return n.Test(ctx, g) })
	all, silent := gathered(answers)
	for _, one := range all {
		tested.Join(one)
	}
	tested.Silent, tested.Probes.Seconds = silent, time.Since(began).Seconds()
	return tested, err
}

// clusterServices are those that every cluster has.
type clusterServices struct{ api, dns []string }

// services finds the API's Service and that of the cluster's DNS.
func (c Cluster) services(ctx context.Context) (s clusterServices, err error) {
	api, err := c.get(ctx, "services", "--namespace=default", "--field-selector=metadata.name=kubernetes")
	if err != nil {
		return s, err
	}
	dns, err := c.get(ctx, "services", "--namespace=kube-system", "--selector=k8s-app=kube-dns")
	for _, o := range api {
		for _, ip := range o.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil && len(o.Spec.Ports) > 0 {
				s.api = append(s.api, "default/kubernetes="+netip.AddrPortFrom(a, o.Spec.Ports[0].Port).String())
			}
		}
	}
	for _, o := range dns {
		for _, ip := range o.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				s.dns = append(s.dns, a.String())
			}
		}
	}
	return s, err
}
