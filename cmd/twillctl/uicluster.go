package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/ui"
)

// clusterSource shows a Kubernetes cluster, with what the user's kubectl may ask.
type clusterSource struct{ target *target }

func (s *clusterSource) View() ui.View {
	return ui.View{Schema: ui.Schema, Kind: "cluster", Name: s.target.cluster.context, Version: version,
		Can: ui.Can{Trace: true, Doctor: true, Probe: true, History: true, Live: true}}
}

func (s *clusterSource) Status(ctx context.Context) (doctor.StatusReport, error) {
	return s.target.cluster.status(ctx, nil)
}

func (s *clusterSource) Doctor(ctx context.Context, probe bool) (doctor.Survey, error) {
	return s.target.cluster.doctor(ctx, nil, probe)
}

func (s *clusterSource) Trace(ctx context.Context, from, to string, live bool) (doctor.Trace, error) {
	t := *s.target
	t.options.Probe, t.live, t.during = true, live, 3*time.Second
	return t.cluster.trace(ctx, &t, from, to)
}

func (s *clusterSource) History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error) {
	return s.target.history(ctx, nil, since)
}

// Places returns the cluster's pods and Services. Which nodes share a segment of the underlay nobody knows.
func (s *clusterSource) Places(ctx context.Context) (ui.Places, error) {
	places := ui.Places{Segments: []ui.Segment{}, Pods: []ui.Pod{}, Services: []ui.Service{}}
	found, err := s.target.cluster.get(ctx, "pods,services", "--all-namespaces")
	if err != nil {
		return places, err
	}
	for _, p := range found {
		id := p.Metadata.Namespace + "/" + p.Metadata.Name
		switch {
		case p.Kind == "Service" && len(p.Spec.ClusterIPs) > 0 && p.Spec.ClusterIPs[0] != "None":
			service := ui.Service{ID: "service/" + id, Ports: []uint16{}}
			for _, port := range p.Spec.Ports {
				service.Ports = append(service.Ports, port.Port)
			}
			places.Services = append(places.Services, service)
		case p.Kind == "Pod" && !p.Spec.HostNetwork && p.Status.Phase == "Running" && len(p.addresses()) > 0:
			places.Pods = append(places.Pods, ui.Pod{ID: id, Node: p.Spec.NodeName, Addrs: texts(p.addresses())})
		}
	}
	slices.SortFunc(places.Pods, func(a, b ui.Pod) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.ID, b.ID))
	})
	return places, nil
}
