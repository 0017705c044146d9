package target

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor"
)

// report shows a node as it was when twillctl report looked at it.
type report struct {
	name    string
	version string // of this program
	status  doctor.StatusReport
	finds   doctor.Diagnosis
	history *doctor.HistoryReport // nil: the report has none
}

// OpenReport reads a file that twillctl report wrote.
func OpenReport(name, version string) (Source, error) {
	members, err := ReadReport(name)
	if err != nil {
		return nil, err
	}
	s := &report{name: name, version: version}
	if err := errors.Join(decodeMember(members, "status.json", &s.status), decodeMember(members, "doctor.json", &s.finds)); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var h doctor.HistoryReport
	if decodeMember(members, "history.json", &h) == nil { // reports of earlier versions have none
		s.history = &h
	}
	return s, nil
}

// ReadReport reads the files of a report.
func ReadReport(name string) (Bundle, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the report: %w", err)
	}
	defer f.Close()
	members, err := ReadBundle(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: want a file that twillctl report wrote", name, err)
	}
	return members, nil
}

func decodeMember(members Bundle, name string, into any) error {
	i := slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return fmt.Errorf("it has no %s: was it written by an earlier version of twillctl report?", name)
	}
	if err := json.Unmarshal(members[i].Data, into); err != nil {
		return fmt.Errorf("its %s: %w", name, err)
	}
	return nil
}

func (s *report) View() View {
	return View{Kind: "report", Name: s.name, Version: s.version,
		Can: Can{Doctor: true, History: s.history != nil, Live: true}}
}

func (s *report) Status(context.Context) (doctor.StatusReport, error) { return s.status, nil }

func (s *report) Doctor(context.Context, doctor.Probing, ...netip.Addr) (doctor.Survey, error) {
	return alone(s.finds), nil
}

func (s *report) Places(context.Context) (Places, error) {
	return nowhere(), nil
}

func (s *report) Trace(context.Context, string, string, Tracing) (doctor.Trace, error) {
	return doctor.Trace{}, errors.New("no packet can be followed in a report")
}

func (s *report) History(context.Context, time.Duration) (doctor.HistoryReport, error) {
	if s.history == nil {
		return doctor.HistoryReport{}, errors.New("the report has no history")
	}
	return *s.history, nil
}
