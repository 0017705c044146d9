package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/ui"
)

// reportSource shows a node as it was when twillctl report looked at it.
type reportSource struct {
	name    string
	status  doctor.StatusReport
	finds   doctor.Diagnosis
	history *doctor.HistoryReport // nil: the report has none
}

// openReport reads a file that twillctl report wrote.
func openReport(name string) (*reportSource, error) {
	members, err := readReport(name)
	if err != nil {
		return nil, err
	}
	s := &reportSource{name: name}
	if err := errors.Join(decodeMember(members, "status.json", &s.status), decodeMember(members, "doctor.json", &s.finds)); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var h doctor.HistoryReport
	if decodeMember(members, "history.json", &h) == nil { // reports of earlier versions have none
		s.history = &h
	}
	return s, nil
}

// readReport reads the files of a report.
func readReport(name string) ([]member, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the report: %w", err)
	}
	defer f.Close()
	members, err := readTar(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: want a file that twillctl report wrote", name, err)
	}
	return members, nil
}

func decodeMember(members []member, name string, into any) error {
	i := slices.IndexFunc(members, func(m member) bool { return m.name == name })
	if i < 0 {
		return fmt.Errorf("it has no %s: was it written by an earlier version of twillctl report?", name)
	}
	if err := json.Unmarshal(members[i].data, into); err != nil {
		return fmt.Errorf("its %s: %w", name, err)
	}
	return nil
}

func (s *reportSource) View() ui.View {
	return ui.View{Schema: ui.Schema, Kind: "report", Name: s.name, Version: version,
		Can: ui.Can{Doctor: true, History: s.history != nil, Live: true}}
}

func (s *reportSource) Status(context.Context) (doctor.StatusReport, error) { return s.status, nil }

func (s *reportSource) Doctor(context.Context, bool) (doctor.Survey, error) {
	return doctor.NewSurvey([]doctor.Diagnosis{s.finds}, nil, doctor.Probes{}, doctor.Lost{}), nil
}

func (s *reportSource) Places(context.Context) (ui.Places, error) {
	return ui.Places{Segments: []ui.Segment{}, Pods: []ui.Pod{}, Services: []ui.Service{}}, nil
}

func (s *reportSource) Trace(context.Context, string, string, bool) (doctor.Trace, error) {
	return doctor.Trace{}, errors.New("no packet can be followed in a report")
}

func (s *reportSource) History(context.Context, time.Duration) (doctor.HistoryReport, error) {
	if s.history == nil {
		return doctor.HistoryReport{}, errors.New("the report has no history")
	}
	return *s.history, nil
}

// reportHTML writes the page with all that it shows now.
func (t *target) reportHTML(ctx context.Context, out io.Writer, path string, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s: with --html no node can be named: the page shows all", args[0])
	}
	source, err := t.source(nil)
	if err != nil {
		return err
	}
	saved, err := ui.Save(ctx, source)
	if err != nil {
		return err
	}
	if path == "-" {
		return saved.WriteHTML(plain.Raw(out))
	}
	if err := writeNew(path, saved.WriteHTML); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %d nodes\n", path, len(saved.Update.Nodes))
	return err
}
