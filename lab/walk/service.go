package walk

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/twill-net/twill/doctor/connect"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/lab"
)

// apiPaths are what the API server is asked for.
var apiPaths = []string{"/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes", "/api/v1/pods"}

// Service connects from a pod to a Service, and says what became of it; or it returns why there is nothing to connect to.
func Service(ctx context.Context, l *lab.Lab, from *lab.Pod, q service.Query) ([]service.Report, *service.Problem, error) {
	var objects []byte
	for _, path := range apiPaths {
		list, err := l.API(ctx, http.MethodGet, path, nil)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, list...)
	}
	catalog, err := service.Parse(objects)
	if err != nil {
		return nil, nil, err
	}
	targets, problem := catalog.Goals(q, from.Node.Name, from.Addrs)
	if problem != nil {
		return nil, problem, nil
	}
	places := hosts(l, from)
	var reports []service.Report
	for _, t := range targets {
		seen, err := places.To(ctx, t)
		if err != nil {
			return reports, nil, err
		}
		reports = append(reports, service.Explain(t, seen))
	}
	return reports, nil, nil
}

// hosts are all of the lab, with a pod as the client.
func hosts(l *lab.Lab, client *lab.Pod) connect.Places {
	p := connect.Places{Nodes: map[string]connect.Node{}, Pods: map[netip.Addr]watch.Place{}}
	p.Client = connect.Client{Place: watch.Place{Host: client.ID(), Do: client.Do}, Node: client.Node.Name,
		Addrs: client.Addrs}
	for _, n := range l.Nodes() {
		p.Nodes[n.Name] = connect.Node{Place: watch.Place{Host: n.Name, Do: n.Do}, Addrs: n.Underlay()}
	}
	for _, pod := range l.Pods() {
		for _, a := range pod.Addrs {
			p.Pods[a] = watch.Place{Host: pod.ID(), Do: pod.Do}
		}
	}
	return p
}
