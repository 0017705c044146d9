package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// site is what the backend's own process gets of this one.
func (a *Agent) site() backend.Site {
	return backend.Site{Dir: filepath.Dir(a.SubnetFile), Say: a.say}
}

// say is a Runner's word in the log: an error in full once.
func (a *Agent) say(text string, err error, args ...any) {
	if err != nil {
		a.status.logError(a.Log.With(args...), text, err)
		return
	}
	a.status.heard(text, args)
	a.Log.Info(text, append([]any{"node", a.Node}, args...)...)
}

// RunnerStatus is how a backend's own part is doing.
type RunnerStatus struct {
	Running bool      `json:"running"`
	Since   time.Time `json:"since"`           // when that began; zero: it never ran
	Error   string    `json:"error,omitempty"` // why it does not run
	Says    string    `json:"says,omitempty"`  // what it said last: what moves the packets, on which port
}

func (s *Status) heard(text string, args []any) {
	for i := 0; i+1 < len(args); i += 2 {
		text += fmt.Sprintf(" %v=%v", args[i], args[i+1])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = text
}

func (s *Status) runner() *RunnerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return &RunnerStatus{Since: s.downSince.UTC(), Error: s.down.Error(), Says: s.says}
	}
	return &RunnerStatus{Running: true, Since: s.upSince.UTC(), Says: s.says}
}

// Report is what /status says, for programs.
type Report struct {
	Node     string        `json:"node"`
	Backend  string        `json:"backend"`
	NotReady string        `json:"notReady,omitempty"` // why, empty if it is ready
	Runner   *RunnerStatus `json:"runner,omitempty"`   // of a backend that has a part which is no kernel state
}

// Report is how the agent is doing now. Any goroutine may ask.
func (a *Agent) Report() Report {
	r := Report{Node: a.Node, Backend: a.Network.Backend}
	if err := a.status.Ready(); err != nil {
		r.NotReady = err.Error()
	}
	if _, ok := a.Backend.(backend.Runner); ok {
		r.Runner = a.status.runner()
	}
	return r
}

// prepare lets a Runner make ready what it publishes, and go on with what an earlier agent left. It is false when ctx
// ended first.
func (a *Agent) prepare(ctx context.Context, node backend.Node) bool {
	r, ok := a.Backend.(backend.Runner)
	if !ok {
		return true
	}
	done := a.persist(ctx, "prepare the backend", func() error { return r.Prepare(ctx, a.site()) })
	if done {
		a.resume(node)
	}
	return done
}

// resume shows a Runner the checkpoint's leases, so that packets move before the store has spoken: a list of thousands of
// nodes takes a second, and a store that is away takes longer. Only an agent of the same boot has left what they stand on.
func (a *Agent) resume(node backend.Node) {
	env, err := subnet.ReadEnv(a.SubnetFile)
	if err != nil || env.BootID == "" || env.BootID != bootID() {
		return
	}
	snap, ok := a.lastTime()
	if !ok {
		return
	}
	select {
	case a.views <- backend.View{Node: node, Snapshot: *snap}:
	default: // the loop was first, and knows better
	}
}

// settled is how long a Runner must run to count as running: what it cannot do it finds out at once.
const settled = 200 * time.Millisecond

// runBackend keeps a Runner running.
func (a *Agent) runBackend(ctx context.Context, r backend.Runner) error {
	for ctx.Err() == nil {
		a.persist(ctx, "run the backend", func() error {
			timer := time.AfterFunc(settled, func() { a.status.runs(nil) })
			err := r.Run(ctx, a.site(), a.views)
			timer.Stop()
			if err != nil {
				a.status.runs(err)
			}
			return err
		})
	}
	return nil
}

// persist tries f until it succeeds, and is false when ctx ended first. While f fails the loop looks again, so that
// f gets a view of its own each time.
func (a *Agent) persist(ctx context.Context, what string, f func() error) bool {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		began := time.Now()
		err := f()
		if err == nil {
			return ctx.Err() == nil
		}
		if time.Since(began) > lastRetry {
			wait = firstRetry // it worked for a while
		}
		a.status.logError(a.Log, what, err)
		if !pause(ctx, wait) {
			return false
		}
		a.kick()
	}
}

// show hands a Runner the newest view; one that it has not taken yet is dropped.
func (a *Agent) show(node backend.Node, snap subnet.Snapshot, synced bool) {
	if _, ok := a.Backend.(backend.Runner); !ok {
		return
	}
	view := backend.View{Node: node, Snapshot: snap, Synced: synced}
	for {
		select {
		case a.views <- view:
			return
		case <-a.views:
		}
	}
}
