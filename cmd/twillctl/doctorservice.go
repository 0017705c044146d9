package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/target"
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
func askServices(ctx context.Context, t target.Network, s *doctor.Survey, q service.Query) error {
	from, err := t.Senders(ctx, q.Namespace)
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
			if traces[i], err = t.Trace(ctx, from[n], q.String(), target.Tracing{Probe: true}); err != nil {
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
