package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/ui"
)

// labSource shows a lab. The lab is opened anew for each question: nodes and pods come and go.
type labSource struct{ target *target }

func newLabSource(t *target) (*labSource, error) {
	if _, err := lab.Open("", t.lab); err != nil {
		return nil, err
	}
	return &labSource{t}, nil
}

func (s *labSource) View() ui.View {
	return ui.View{Schema: ui.Schema, Kind: "lab", Name: s.target.lab, Version: version,
		Can: ui.Can{Walk: true, Trace: true, Doctor: true, Probe: true, History: true, Faults: true, Scripts: true, Live: true}}
}

// Status returns the nodes by the lab's names: without a lease a node does not know its own. A lab without agents has
// nothing that could be found wrong.
func (s *labSource) Status(ctx context.Context) (doctor.StatusReport, error) {
	l, err := lab.Open("", s.target.lab)
	if err != nil {
		return doctor.StatusReport{}, err
	}
	r, err := s.target.status(ctx, nil)
	if err != nil || len(r.Nodes) != len(l.Nodes()) {
		return r, err
	}
	for i, n := range l.Nodes() {
		r.Nodes[i].Node = n.Name
		if l.Spec().Bare {
			r.Nodes[i].Findings, r.Nodes[i].Underlay = []string{}, texts(n.Underlay())
		}
	}
	return r, nil
}

func (s *labSource) Doctor(ctx context.Context, probe bool) (doctor.Survey, error) {
	t := *s.target
	t.options.Probe = probe
	return t.surveyLab(ctx)
}

func (s *labSource) Trace(ctx context.Context, from, to string, live bool) (doctor.Trace, error) {
	t := *s.target
	t.options.Probe, t.live, t.during = true, live, 3*time.Second
	return t.traceInLab(ctx, from, to)
}

func (s *labSource) History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error) {
	return s.target.history(ctx, nil, since)
}

func (s *labSource) Places(context.Context) (ui.Places, error) {
	l, err := lab.Open("", s.target.lab)
	if err != nil {
		return ui.Places{}, err
	}
	places := ui.Places{Segments: []ui.Segment{}, Pods: []ui.Pod{}, Services: []ui.Service{}}
	for i, networks := range l.Spec().Segments() {
		segment := ui.Segment{Name: fmt.Sprintf("segment %d", i+1), Subnets: texts(networks), Nodes: []string{}}
		for _, n := range l.Nodes() {
			if n.Segment() == i {
				segment.Nodes = append(segment.Nodes, n.Name)
			}
		}
		places.Segments = append(places.Segments, segment)
	}
	for _, p := range l.Pods() {
		places.Pods = append(places.Pods, ui.Pod{ID: p.ID(), Node: p.Node.Name, Addrs: texts(p.Addrs)})
	}
	return places, nil
}

func texts[T fmt.Stringer](values []T) []string {
	all := []string{}
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

func (s *labSource) Walk(ctx context.Context, from, to string, ipv6 bool) (walk.Path, error) {
	l, err := lab.Open("", s.target.lab)
	if err != nil {
		return walk.Path{}, err
	}
	a, err := l.FindPod(from)
	if err != nil {
		return walk.Path{}, err
	}
	b, err := l.FindPod(to)
	if err != nil {
		return walk.Path{}, err
	}
	family := l.Spec().Families()[0]
	if ipv6 {
		family = netstate.IPv6
	}
	return walk.Walk(ctx, l, a, b, family)
}
