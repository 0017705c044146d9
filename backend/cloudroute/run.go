package cloudroute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/smallfile"
)

// recordFile is in the agent's directory: what an agent that is started again, and --cleanup, know of the routes.
const recordFile = "cloud.json"

// record is the file's content.
type record struct {
	Type   string   `json:"type"`
	Tables []string `json:"tables,omitempty"` // of the options
	cloud.Record
}

// Prepare implements backend.Runner. Leases wait for no cloud.
func (*Backend) Prepare(context.Context, backend.Env) error { return nil }

// Reports implements backend.Reporter.
func (*Backend) Reports() {}

// Run keeps this node's routes in the cloud.
func (b *Backend) Run(ctx context.Context, env backend.Env, inputs <-chan backend.Input) error {
	api, err := b.open(b.options)
	if err != nil {
		return err
	}
	path := filepath.Join(env.Dir, recordFile)
	earlier, err := readRecord(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		env.Log.Warn("the record of this node's routes is of no use, the cloud is asked again", "err", err)
	}
	if earlier.Type != b.kind {
		earlier = record{}
	}
	views := make(chan cloud.View)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go forward(ctx, inputs, views)
	return cloud.Reconciler{
		Cloud: api, Pools: b.pools, Log: env.Log, Record: earlier.Record,
		Report: report(env),
		Save: func(r cloud.Record) {
			if err := writeRecord(path, record{b.kind, b.options.Tables, r}); err != nil {
				env.Log.Error("keep the record of this node's routes", "err", err)
			}
		},
	}.Run(ctx, views)
}

// logAgain is how often an error that lasts is logged. Its text may differ each time: providers number their answers.
const logAgain = 10 * time.Minute

// report returns what logs a reconciler's errors and their end, and passes its health on.
func report(env backend.Env) func(cloud.Health) {
	var logged time.Time // of the error that lasts; zero: there is none
	seen := false
	return func(h cloud.Health) {
		switch {
		case h.Err != nil && time.Since(logged) >= logAgain:
			env.Log.Error("keep this node's routes in the cloud", "reason", h.Err)
			logged = time.Now()
		case h.Err == nil && !logged.IsZero():
			env.Log.Info("this node's routes in the cloud can be kept again")
			logged = time.Time{}
		}
		if h.Seen && !seen {
			env.Log.Info("the cloud leads packets to this node's pods")
		}
		seen = h.Seen
		env.Report(health(h))
	}
}

// forward makes a view of each input. One that comes while the newest is still to be taken replaces it.
func forward(ctx context.Context, inputs <-chan backend.Input, views chan<- cloud.View) {
	var newest cloud.View
	var out chan<- cloud.View // nil: the newest was taken
	for {
		select {
		case <-ctx.Done():
			return
		case in := <-inputs:
			newest, out = view(in), views
		case out <- newest:
			out = nil
		}
	}
}

func view(in backend.Input) cloud.View {
	v := cloud.View{Snapshot: in.Snapshot, Synced: in.Synced}
	for _, u := range in.Node.Underlays {
		v.Local = append(v.Local, u.Local)
	}
	return v
}

func health(h cloud.Health) backend.Health {
	all := make([]backend.Trouble, 0, len(h.Troubles))
	for _, t := range h.Troubles {
		all = append(all, backend.Trouble{ID: t.ID, Object: t.Object, Actual: t.Actual, Fix: t.Fix})
	}
	return backend.Health{Seen: h.Seen, Wrong: h.Wrong, Err: h.Err, Troubles: all,
		Calls: h.Calls, Writes: h.Writes, Failures: h.Failures}
}

// Plan implements backend.Planner.
func (b *Backend) Plan(ctx context.Context, _ backend.Env, in backend.Input) ([]string, error) {
	api, err := b.open(b.options)
	if err != nil {
		return nil, err
	}
	v := view(in)
	self, err := api.Self(ctx, v.Local)
	if err != nil {
		return nil, err
	}
	have, err := api.List(ctx, self)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", self.Network, err)
	}
	var lines []string
	for _, c := range cloud.Diff(cloud.Want(self, v.Snapshot.Local), have, self, b.pools) {
		lines = append(lines, c.String())
	}
	return lines, nil
}

// Cleanup deletes the routes that an agent with this directory made, if they still lead to this node, and returns a line for
// each. Without a record there is nothing to delete.
func Cleanup(ctx context.Context, dir string, openers map[string]cloud.Opener) (lines []string, err error) {
	path := filepath.Join(dir, recordFile)
	r, err := readRecord(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	open, ok := openers[r.Type]
	if !ok {
		return nil, fmt.Errorf("%s has routes of %q, which this twilld does not know: delete %v there, and then the file", path, r.Type, r.Routes)
	}
	api, err := open(cloud.Options{Tables: r.Tables})
	if err != nil {
		return nil, err
	}
	self, err := api.Self(ctx, r.Local)
	if err != nil {
		return nil, fmt.Errorf("find out which routes of %s are still this node's (delete the file if it is another machine's): %w", path, err)
	}
	have, err := api.List(ctx, self)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", self.Network, err)
	}
	for _, h := range have {
		isRecorded := slices.ContainsFunc(r.Routes, func(o cloud.Route) bool { return o.Table == h.Table && o.Dst == h.Dst })
		if !isRecorded || h.Target != self.Target {
			continue
		}
		c := cloud.Change{Op: cloud.Delete, Route: h}
		if err := api.Apply(ctx, self, c); err != nil && !errors.Is(err, cloud.ErrGone) {
			return lines, fmt.Errorf("%s: %w", c, err)
		}
		lines = append(lines, c.String())
	}
	return lines, os.Remove(path)
}

func readRecord(path string) (r record, err error) {
	data, err := smallfile.ReadUnlinked(path, smallfile.MB)
	if errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

func writeRecord(path string, r record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}

func (b *Backend) networks() (list []netip.Prefix) {
	for _, p := range b.pools {
		list = append(list, p.Network)
	}
	return list
}
