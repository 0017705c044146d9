package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/lab"
)

// maxConnecting is how many nodes connect to a Service at one time.
const maxConnecting = 4

// splitService returns the Service among the arguments of doctor, and the others.
func splitService(args []string) (q service.Query, rest []string, ok bool, err error) {
	for _, a := range args {
		found, isService, err := service.ParseQuery(a)
		switch {
		case err != nil:
			return q, nil, false, err
		case isService && ok:
			return q, nil, false, fmt.Errorf("%q: want one Service, and %s is another", a, q)
		case isService:
			q, ok = found, true
		default:
			rest = append(rest, a)
		}
	}
	return q, rest, ok, nil
}

// askServices has a pod of each node connect to a Service, and adds what became of it to the survey.
func (t *target) askServices(ctx context.Context, s *doctor.Survey, q service.Query) error {
	connect, senders := t.cluster.traceService, t.cluster.senders
	if t.lab != "" {
		l, err := lab.Open("", t.lab)
		if err != nil {
			return err
		}
		connect = func(ctx context.Context, t *target, src string, q service.Query) (doctor.Trace, error) {
			return t.serviceInLab(ctx, l, src, q)
		}
		senders = func(context.Context, string) (map[string]string, error) { return labSenders(l), nil }
	}
	from, err := senders(ctx, q.Namespace)
	if err != nil {
		return err
	}
	var nodes []string
	for _, d := range s.Nodes {
		if from[d.Node] != "" {
			nodes = append(nodes, d.Node)
			continue
		}
		s.Probes.Unread = append(s.Probes.Unread, fmt.Sprintf("%s: it runs no pod that could connect to %s", d.Node, q))
	}
	var group errgroup.Group
	group.SetLimit(maxConnecting)
	traces, silent := make([]doctor.Trace, len(nodes)), make([]string, len(nodes))
	for i, n := range nodes {
		group.Go(func() error {
			var err error
			if traces[i], err = connect(ctx, t, from[n], q); err != nil {
				silent[i] = n + ": " + err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // each error is a node's
	for i := range nodes {
		if silent[i] != "" {
			s.Silent = append(s.Silent, silent[i])
		} else {
			s.Services = append(s.Services, traces[i])
		}
	}
	return ctx.Err()
}

// senders returns a pod of each node of the cluster that has one: of the Service's namespace rather than of another, which
// policies may keep away from it.
func (c cluster) senders(ctx context.Context, namespace string) (map[string]string, error) {
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

func labSenders(l *lab.Lab) map[string]string {
	from := map[string]string{}
	for _, p := range slices.Backward(l.Pods()) {
		from[p.Node.Name] = p.ID()
	}
	return from
}
