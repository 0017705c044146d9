package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/twill-net/twill/agent/reach"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/certs"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// env returns what the backend's Runner gets of this process.
func (a *Agent) env() backend.Env {
	log := slog.New(runnerLog{a.Log.With("node", a.Node).Handler(), &a.status, &a.causes})
	return backend.Env{Dir: filepath.Dir(a.Settings.SubnetFile), Log: log, Report: func(h backend.Health) {
		a.Metrics.reported(a.status.updateHealth(h), h)
		a.trigger()
	}}
}

// runnerLog handles what a Runner logs: it logs an error once, and keeps the last message without one for /status.
type runnerLog struct {
	slog.Handler
	status *status
	causes *causes.Log
}

// Handle implements slog.Handler.
func (l runnerLog) Handle(ctx context.Context, r slog.Record) error {
	var args []any
	var failed error
	says := r.Message
	r.Attrs(func(attr slog.Attr) bool {
		if err, ok := attr.Value.Any().(error); ok && attr.Key == "err" {
			failed = err
			return true
		}
		args = append(args, attr)
		says += " " + attr.String()
		return true
	})
	if failed != nil {
		l.causes.Error(slog.New(l.Handler), r.Message, failed, args...)
		return nil
	}
	l.status.updateSays(says)
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l runnerLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return runnerLog{l.Handler.WithAttrs(attrs), l.status, l.causes}
}

// RunnerStatus is how a backend's own part is doing.
type RunnerStatus struct {
	Running bool      `json:"running"`
	Since   time.Time `json:"since"`           // when that began; zero: it never ran
	Error   string    `json:"error,omitempty"` // why it does not run, or what it last failed to do
	Says    string    `json:"says,omitempty"`  // what it said last: what moves the packets, on which port
	// Troubles are what it says is wrong outside the kernel.
	Troubles []backend.Trouble `json:"troubles,omitempty"`
}

func (s *status) updateSays(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = text
}

func (s *status) runner() *RunnerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runnerErr != nil {
		return &RunnerStatus{Since: s.downSince.UTC(), Error: s.runnerErr.Error(), Says: s.says, Troubles: s.health.Troubles}
	}
	r := &RunnerStatus{Running: true, Since: s.upSince.UTC(), Says: s.says, Troubles: s.health.Troubles}
	if s.health.Err != nil {
		r.Error = s.health.Err.Error()
	}
	return r
}

// updateHealth notes what a Reporter says, and returns what it said before.
func (s *status) updateHealth(h backend.Health) (before backend.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.health = s.health, h
	return before
}

// Report is what /status says, for programs.
type Report struct {
	Node     string `json:"node"`
	Backend  string `json:"backend"`
	NotReady string `json:"notReady,omitempty"` // why, empty if it is ready
	Refused  string `json:"refused,omitempty"`  // why the backend of the network config is not taken
	// NameTakenBy is the address of another machine that publishes this node's lease, empty if none does.
	NameTakenBy string        `json:"nameTakenBy,omitempty"`
	Runner      *RunnerStatus `json:"runner,omitempty"` // of a backend that has a part which is no kernel state
	// Policies says how network policies are enforced; nil: by nobody, or not by this agent.
	Policies *PolicyStatus `json:"policies,omitempty"`
	// FastPath says whether pods' packets take it; nil: nobody wants that.
	FastPath *FastPathStatus `json:"fastPath,omitempty"`
	// Contended are files that another program keeps changing.
	Contended []string `json:"contended,omitempty"`
	// Certificates are those by which the agent and the store know each other.
	Certificates []certs.Certificate `json:"certificates,omitempty"`
	// Reach says from which peers packets come back; nil: none is asked.
	Reach *reach.Report `json:"reach,omitempty"`
	// Waits are steps of the start that take long, and since when.
	Waits []string `json:"waits,omitempty"`
}

func (a *Agent) report() Report {
	r := Report{Node: a.Node, Backend: a.Network.Backend, NameTakenBy: a.disputes.open(), Policies: a.policyStatus(),
		FastPath: a.status.fast(), Contended: a.files.Contended(), Certificates: a.renewals.certificates()}
	if a.reach != nil {
		asked := a.reach.Report()
		r.Reach = &asked
	}
	for _, s := range a.Steps.Slow() {
		r.Waits = append(r.Waits, s.String())
	}
	if a.Refused != nil {
		r.Refused = a.Refused.Error()
	}
	if err := a.Ready(); err != nil {
		r.NotReady = err.Error()
	}
	if _, ok := a.Backend.(backend.Runner); ok {
		r.Runner = a.status.runner()
	}
	return r
}

// prepareBackend lets a Runner prepare what it publishes, and continue with what an earlier agent
// left. It reports whether ctx is still alive.
func (a *Agent) prepareBackend(ctx context.Context, node backend.Node) bool {
	r, ok := a.Backend.(backend.Runner)
	if !ok {
		return true
	}
	done := a.retryWithBackoff(ctx, "prepare the backend", func() error { return r.Prepare(ctx, a.env()) })
	if done {
		a.sendEarlierView(node)
	}
	return done
}

// sendEarlierView sends a Runner the checkpoint's leases, so that packets move before the store has
// answered: a list of thousands of nodes takes a second, and a store that is away takes longer.
// Only an agent of the same boot has left what they stand on.
func (a *Agent) sendEarlierView(node backend.Node) {
	env, err := subnet.ReadEnv(a.Settings.SubnetFile)
	if err != nil || env.BootID == "" || env.BootID != subnet.BootID() {
		return
	}
	earlier := a.earlierSnapshot()
	if earlier == nil {
		return
	}
	select {
	case a.views <- backend.Input{Node: node, Snapshot: a.seen(earlier.WithEarlier())}:
	default: // the loop was first, and knows better
	}
}

// settleTime is how long a Runner must run to count as running: what it cannot do it finds out at once.
const settleTime = 200 * time.Millisecond

// runBackend keeps a Runner running.
func (a *Agent) runBackend(ctx context.Context, r backend.Runner) error {
	for ctx.Err() == nil {
		a.retryWithBackoff(ctx, "run the backend", func() error {
			timer := time.AfterFunc(settleTime, func() {
				a.status.updateRunner(nil)
				a.trigger() // a switch may have waited for it
			})
			err := r.Run(ctx, a.env(), a.views)
			timer.Stop()
			if err != nil {
				a.status.updateRunner(err)
			}
			return err
		})
	}
	return nil
}

// retryWithBackoff calls f until it succeeds, and reports whether ctx is still alive then. After
// each error it triggers a reconcile, so that f gets a view of its own each time.
func (a *Agent) retryWithBackoff(ctx context.Context, what string, f func() error) bool {
	for retry := newBackoff(); ; {
		began := time.Now()
		err := f()
		if err == nil {
			return ctx.Err() == nil
		}
		if time.Since(began) > lastRetry {
			retry.Reset() // it worked for a while
		}
		a.causes.Error(a.Log, what, err)
		if !loop.Sleep(ctx, retry.Next()) {
			return false
		}
		a.trigger()
	}
}

// sendView sends a Runner the newest view; one that it has not taken yet is dropped.
func (a *Agent) sendView(node backend.Node, snap subnet.Snapshot, synced bool) {
	if _, ok := a.Backend.(backend.Runner); ok {
		replace(a.views, backend.Input{Node: node, Snapshot: a.seen(snap), Synced: synced})
	}
}
