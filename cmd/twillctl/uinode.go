package main

import (
	"context"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/ui"
)

// nodeSource shows the node that this process is on, and what it knows of its peers.
type nodeSource struct{ target *target }

func (s *nodeSource) View() ui.View {
	return ui.View{Schema: ui.Schema, Kind: "node", Version: version,
		Can: ui.Can{Trace: true, Doctor: true, Probe: true, History: true, Live: true}}
}

func (s *nodeSource) Status(ctx context.Context) (doctor.StatusReport, error) {
	return s.target.status(ctx, nil)
}

func (s *nodeSource) Doctor(ctx context.Context, probe bool) (doctor.Survey, error) {
	t := *s.target
	t.options.Probe = probe
	began := time.Now()
	f, err := t.gather(ctx, nil)
	if err != nil {
		return doctor.Survey{}, err
	}
	return doctor.NewSurvey([]doctor.Diagnosis{doctor.Diagnose(f, time.Since(began))}, nil, doctor.Probes{}, doctor.Lost{}), nil
}

func (s *nodeSource) Trace(ctx context.Context, from, to string, live bool) (doctor.Trace, error) {
	t := *s.target
	t.options.Probe, t.live, t.during = true, live, 3*time.Second
	return t.traceHere(ctx, from, to)
}

func (s *nodeSource) History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error) {
	return s.target.history(ctx, nil, since)
}

// Places are not known: a trace takes the addresses of pods.
func (s *nodeSource) Places(context.Context) (ui.Places, error) {
	return ui.Places{Segments: []ui.Segment{}, Pods: []ui.Pod{}, Services: []ui.Service{}}, nil
}
