package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/subnet"
)

// retry is how long a command that failed waits.
const retry = 5 * time.Second

// Prepare runs PreStartupCommand and keeps what it wrote for Publish. flannel publishes nothing when there is no
// such command, and an empty string when it wrote nothing.
func (b *Backend) Prepare(ctx context.Context, env backend.Env) error {
	if b.options.PreStartupCommand == "" {
		return nil
	}
	out, err := b.options.run(ctx, patience, b.options.PreStartupCommand, "", network(b.networks)...)
	if err != nil {
		return err
	}
	env.Log.Info("ran a command", "command", "PreStartupCommand", "output", out)
	data, _ := json.Marshal(out) // every string has a JSON form
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = data
	return nil
}

// Run runs PostStartupCommand with the first view, then SubnetAddCommand for each peer that is new or has changed, and
// SubnetRemoveCommand for each that left, also while no agent ran; ShutdownCommand when ctx is done.
func (b *Backend) Run(ctx context.Context, env backend.Env, views <-chan backend.Input) error {
	r := runs{Backend: b, env: env, file: filepath.Join(env.Dir, "extension.json")}
	if err := r.load(); err != nil {
		return err
	}
	var view *backend.Input
	again := time.NewTimer(retry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			r.shutdown(context.WithoutCancel(ctx), view)
			return nil
		case v := <-views:
			view = &v
		case <-again.C:
		}
		if view != nil && !r.follow(ctx, *view) {
			again.Reset(retry)
		}
	}
}

// runs is one Run.
type runs struct {
	*Backend
	env     backend.Env
	file    string
	started bool
	added   map[string]place // the nodes for which SubnetAddCommand succeeded; kept in file
	fresh   map[string]bool  // of these, those of this run
}

// follow runs what a view asks for, and is false if some of it failed.
func (r *runs) follow(ctx context.Context, view backend.Input) bool {
	ok := r.startup(ctx, view)
	peers := r.places(view)
	for _, node := range slices.Sorted(maps.Keys(r.added)) {
		p, here := peers[node]
		moved := here && (p.Subnet != r.added[node].Subnet || p.IPv6Subnet != r.added[node].IPv6Subnet)
		if view.Synced && !here || moved {
			ok = r.remove(ctx, node) && ok
		}
	}
	for _, node := range slices.Sorted(maps.Keys(peers)) {
		if r.added[node] != peers[node] || !r.fresh[node] {
			ok = r.add(ctx, node, peers[node]) && ok
		}
	}
	return ok
}

// places are the peers of a view that can be used, by node.
func (r *runs) places(view backend.Input) map[string]place {
	stacks := map[string][]subnet.Stack{}
	peers, _ := backend.Peers(r.networks, view.Node, view.Snapshot)
	for _, p := range peers {
		if !p.Earlier { // a place has one subnet
			stacks[p.Node] = append(stacks[p.Node], p.Stack)
		}
	}
	places := make(map[string]place, len(stacks))
	for node, s := range stacks {
		places[node] = placeOf(s)
	}
	return places
}

func (r *runs) startup(ctx context.Context, view backend.Input) bool {
	env := append(network(r.networks), placeOf(view.Snapshot.Local.Stacks).environment()...)
	if !r.started && r.command(ctx, "PostStartupCommand", r.options.PostStartupCommand, r.env.Log, "", env) {
		r.started = true
	}
	return r.started
}

func (r *runs) shutdown(ctx context.Context, view *backend.Input) {
	env := network(r.networks)
	if view != nil {
		env = append(env, placeOf(view.Snapshot.Local.Stacks).environment()...)
	}
	r.command(ctx, "ShutdownCommand", r.options.ShutdownCommand, r.env.Log, "", env)
}

func (r *runs) add(ctx context.Context, node string, p place) bool {
	if !r.command(
		ctx,
		"SubnetAddCommand",
		r.options.SubnetAddCommand,
		r.env.Log.With("peer", node),
		p.Data,
		p.environment(),
	) {
		return false
	}
	r.added[node], r.fresh[node] = p, true
	return r.save()
}

func (r *runs) remove(ctx context.Context, node string) bool {
	p := r.added[node]
	if !r.command(
		ctx,
		"SubnetRemoveCommand",
		r.options.SubnetRemoveCommand,
		r.env.Log.With("peer", node),
		p.Data,
		p.environment(),
	) {
		return false
	}
	delete(r.added, node)
	return r.save()
}

// command runs one of the options' commands, logs its output, and reports whether it succeeded.
func (r *runs) command(ctx context.Context, name, command string, log *slog.Logger, input string, env []string) bool {
	if command == "" {
		return true
	}
	out, err := r.options.run(ctx, patience, command, input, env...)
	if err != nil {
		if ctx.Err() == nil {
			log.Error("run "+name, "err", err)
		}
		return false
	}
	log.Info("ran a command", "command", name, "output", strings.TrimSpace(out))
	return true
}

// mostRuns bounds what is read of the file, in bytes.
const mostRuns = 64 * smallfile.MB

// load reads which nodes an earlier run of this boot has added: the directory does not outlive the boot, like what
// the commands made.
func (r *runs) load() error {
	r.added, r.fresh = map[string]place{}, map[string]bool{}
	data, err := smallfile.ReadUnlinked(r.file, mostRuns)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &r.added); err != nil || r.added == nil {
		r.env.Log.Error(
			"read "+r.file+": starting without it",
			"err",
			errors.Join(err, errors.New("want an object of nodes")),
		)
		r.added = map[string]place{}
	}
	return nil
}

// save writes the file; commands that succeeded would only run once more without it.
func (r *runs) save() bool {
	data, err := json.Marshal(r.added)
	if err == nil {
		if old, _ := smallfile.ReadUnlinked(r.file, mostRuns); bytes.Equal(old, data) { // data is never empty
			return true
		}
		err = atomicfile.Write(r.file, data, 0o600)
	}
	if err != nil {
		r.env.Log.Error("remember the peers", "err", err)
	}
	return err == nil
}
