package target

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/locate"
)

// here is the node of one network namespace: this process's own, or a lab's node.
type here struct {
	name    string                   // of a lab's node; empty: this machine
	do      func(func() error) error // calls a function in the namespace
	files   facts.Options
	bpffs   string
	log     string // the agent's; empty: not known
	version string // of this program
}

func (h *here) View() View {
	return View{Kind: "node", Name: h.name, Version: h.version,
		Can: Can{Trace: true, Doctor: true, Probe: true, History: true, Live: true}}
}

// Names are none: nothing has to be chosen.
func (h *here) Names(context.Context) ([]string, error) { return nil, nil }

// Places are not known: a trace takes the addresses of pods.
func (h *here) Places(context.Context) (Places, error) { return nowhere(), nil }

// gather looks at the node.
func (h *here) gather(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (f doctor.Facts, err error) {
	o := h.files
	o.Probe, o.Outside = probe, outside
	err = h.do(func() (err error) {
		f, err = facts.Gather(ctx, o)
		return err
	})
	if f.Node == "" {
		f.Node = h.name // without a lease a node does not know its name
	}
	return f, err
}

func (h *here) Status(ctx context.Context) (doctor.StatusReport, error) {
	r := doctor.StatusReport{Schema: doctor.Schema}
	f, err := h.gather(ctx, doctor.NoProbes)
	if err == nil {
		r.Nodes = append(r.Nodes, doctor.NewStatus(f))
	}
	return r, err
}

func (h *here) Doctor(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Survey, error) {
	d, err := h.Diagnose(ctx, probe, outside...)
	return alone(d), err
}

// alone is the survey of one node, which followed its own probes.
func alone(d doctor.Diagnosis) doctor.Survey {
	return doctor.NewSurvey([]doctor.Diagnosis{d}, nil, doctor.Probes{}, doctor.Lost{})
}

func (h *here) Diagnose(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Diagnosis, error) {
	began := time.Now()
	f, err := h.gather(ctx, probe, outside...)
	if err != nil || probe != doctor.AllProbes {
		return doctor.Diagnose(f, time.Since(began)), err
	}
	d, _, err := h.examine(ctx, f, began, outside...)
	return d, err
}

// examine sends packets from the node, and returns its diagnosis with what became of them.
func (h *here) examine(ctx context.Context, f doctor.Facts, began time.Time, outside ...netip.Addr) (doctor.Diagnosis,
	[]locate.Loss, error) {
	judges := doctor.NewJudges(f)
	report, err := h.probe(ctx, f, judges, outside)
	d := doctor.Diagnose(f, time.Since(began))
	d.Add(probesOf(report, began), judges.Lost(report.Losses, report.Denied))
	return d, report.Losses, err
}

// probe sends packets from the node.
func (h *here) probe(ctx context.Context, f doctor.Facts, judges *doctor.Judges, outside []netip.Addr) (follow.Report, error) {
	n, err := follow.Node(h.do, f)
	if err != nil {
		return follow.Report{}, err
	}
	n.ToOutside(f, outside...)
	n.Denies = judges.Denies
	return n.Probe(ctx)
}

// History returns what the agent remembers. That it cannot be asked is part of a lab's history.
func (h *here) History(_ context.Context, since time.Duration) (doctor.HistoryReport, error) {
	r := doctor.HistoryReport{Schema: doctor.Schema, Nodes: []doctor.NodeHistory{}}
	var of doctor.NodeHistory
	err := h.do(func() (err error) {
		of, err = facts.History(h.files)
		return err
	})
	if err != nil && h.name == "" {
		return r, err
	}
	if err != nil {
		of = doctor.NodeHistory{Node: h.name, Events: []doctor.Event{}, Error: err.Error()}
	}
	r.Nodes = append(r.Nodes, of)
	return r.After(time.Now().Add(-since)), nil
}

// NothingToChange is the plan of a healthy node.
const NothingToChange = "# nothing to change\n"

func (h *here) Plan(ctx context.Context) (p Plan, err error) {
	whole := *h
	whole.files.Twills = true
	f, err := whole.gather(ctx, doctor.NoProbes)
	switch {
	case err != nil:
		return p, err
	case f.Lease.Hidden:
		return p, fmt.Errorf("%s may not be read: run as root", f.Lease.Path)
	case f.Lease.Missing:
		return p, fmt.Errorf("no checkpoint at %s: start twilld once, or name leases with --lease-file", f.Lease.Path)
	case f.Lease.Error != "":
		return p, fmt.Errorf("read the leases: %s", f.Lease.Error)
	}
	for _, reason := range f.NoUnderlay {
		return p, fmt.Errorf("choose the underlay: %s", reason)
	}
	for _, s := range f.Skips {
		p.Text += fmt.Sprintf("# node %s is left out: %s\n", s.Node, s.Detail)
	}
	if p.Changes = len(f.Plan) > 0; p.Changes {
		p.Text += f.Plan.String()
	} else {
		p.Text += NothingToChange
	}
	return p, nil
}
