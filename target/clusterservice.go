package target

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
)

// traceService looks a Service up, has the agent of the pod's node connect to it, and follows the path to an endpoint.
func (c cluster) traceService(ctx context.Context, src string, q service.Query, how Tracing) (doctor.Trace, error) {
	from, err := c.findEnd(ctx, src, q.Addr)
	if err != nil {
		return doctor.Trace{}, err
	}
	r, err := c.agent(ctx, from.node)
	if err != nil {
		return doctor.Trace{}, err
	}
	trace := doctor.NewServiceTrace(from.addr, q.String())
	targets, problem, err := c.targets(ctx, q, from)
	if err != nil || problem != nil {
		trace.Problem = problem
		return trace, err
	}
	if trace, err = r.connect(ctx, from.addr, q, targets); err != nil {
		return trace, err
	}
	e, ok := trace.Endpoint()
	if !ok || slices.Contains(from.all, e.Addr()) {
		return trace, nil
	}
	if _, err := c.findEnd(ctx, e.Addr().String(), from.addr); err != nil {
		return trace, nil // the endpoint is no pod, so there is no more to follow
	}
	path, err := c.Trace(ctx, familyAddr(from.all, e.Addr()).String(), e.Addr().String(), how)
	return pathOf(trace, path), err
}

// targets asks the API server for a Service and what is behind it. In a large cluster the EndpointSlices of all
// Services would be too much, so only those of the one in question are asked for.
func (c Cluster) targets(ctx context.Context, q service.Query, from end) ([]service.Target, *service.Problem, error) {
	get := [][]string{{"services", "--namespace=" + q.Namespace}}
	if q.Addr.IsValid() {
		get = [][]string{{"services,nodes", "--all-namespaces"},
			{"pods", "--all-namespaces", "--field-selector=status.phase=Running"}}
	}
	var objects []byte
	var targets []service.Target
	var problem *service.Problem
	for _, args := range get {
		out, err := c.Kubectl(ctx, append(append([]string{"get"}, args...), "--output=json")...)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, out...)
		if targets, problem, err = goalsOf(objects, q, from); err != nil {
			return nil, nil, err
		}
		if problem == nil {
			break
		}
	}
	if problem != nil {
		return nil, problem, nil
	}
	asked := map[string]bool{"/": true} // a host port has no Service
	for _, t := range targets {
		s := t.Service
		if key := s.Namespace + "/" + s.Name; !asked[key] {
			asked[key] = true
			out, err := c.Kubectl(ctx, "get", "endpointslices", "--namespace="+s.Namespace,
				"--selector=kubernetes.io/service-name="+s.Name, "--output=json")
			if err != nil {
				return nil, nil, err
			}
			objects = append(objects, out...)
		}
	}
	targets, problem, err := goalsOf(objects, q, from)
	return targets, problem, err
}

func goalsOf(objects []byte, q service.Query, from end) ([]service.Target, *service.Problem, error) {
	catalog, err := service.Parse(objects)
	if err != nil {
		return nil, nil, fmt.Errorf("kubectl's answer: %w", err)
	}
	targets, problem := catalog.Goals(q, from.node, from.all)
	return targets, problem, nil
}

// Senders prefers pods of the namespace, because policies may keep those of another away.
func (c cluster) Senders(ctx context.Context, namespace string) (map[string]string, error) {
	pods, err := c.pods(ctx, "--all-namespaces", "--field-selector=status.phase=Running")
	from := map[string]string{}
	slices.SortStableFunc(pods, func(a, b pod) int {
		return cmp.Compare(bit(b.Metadata.Namespace == namespace), bit(a.Metadata.Namespace == namespace))
	})
	for _, p := range slices.Backward(pods) {
		if !p.Spec.HostNetwork && len(p.Status.PodIPs) > 0 {
			from[p.Spec.NodeName] = p.Metadata.Namespace + "/" + p.Metadata.Name
		}
	}
	return from, err
}

func bit(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
