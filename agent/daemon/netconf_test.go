package daemon

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// volume is a directory in which the kubelet keeps the files of a ConfigMap: a link that it puts elsewhere at once.
type volume struct {
	dir string
	n   int
}

func (v *volume) write(t *testing.T, text string) {
	t.Helper()
	v.n++
	name := "..2026_" + strings.Repeat("x", v.n)
	for _, do := range []func() error{
		func() error { return os.Mkdir(filepath.Join(v.dir, name), 0o755) },
		func() error { return os.WriteFile(filepath.Join(v.dir, name, "net-conf.json"), []byte(text), 0o644) },
		func() error { return os.Symlink(name, filepath.Join(v.dir, "..tmp")) },
		func() error { return os.Rename(filepath.Join(v.dir, "..tmp"), filepath.Join(v.dir, "..data")) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
}

// heard is a store that hears events, and a log of which it counts what says that all is well.
type heard struct {
	subnet.Store
	slog.Handler
	mu     sync.Mutex
	events []string
	well   int
}

func (h *heard) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Message == "the network config is what this agent runs with again" {
		h.well++
	}
	return nil
}

func (h *heard) Network(bool, string, string) {}
func (h *heard) Reached(bool, string, string) {}

func (h *heard) Event(kind, reason, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, kind+" "+reason+": "+message)
}

func (h *heard) all() (events []string, well int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events), h.well
}

// TestNetConf: what the agent does not run with is said once, by the names of keys; so is what it could not start with.
func TestNetConf(t *testing.T) {
	v := &volume{dir: t.TempDir()}
	path := filepath.Join(v.dir, "net-conf.json")
	if err := os.Symlink(filepath.Join("..data", "net-conf.json"), path); err != nil {
		t.Fatal(err)
	}
	const config = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`
	v.write(t, config)
	h := &heard{Handler: slog.NewTextHandler(io.Discard, nil)}
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	watchNetConf(ctx, group, &options{leaseFile: "leases", netConfigs: path}, &parts{netConf: []byte(config),
		config: agent.Config{Log: slog.New(h)}, store: store{Store: h}})
	defer func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}()
	for i, step := range []struct {
		text, want string
		well       int
	}{
		{`{"backend": {"Type": "vxlan"}, "network": "10.244.0.0/16"}`, "", 0},
		{`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":2,"PSK":"secret"},"EnableIPv6":false}`,
			path + ": this agent still runs with the earlier Backend, EnableIPv6: restart it to use the new", 0},
		{`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlam"}}`, `an agent that starts now cannot: `, 0},
		{`{"Network":"10.244.0.0/33"}`, `an agent that starts now cannot: network config ` + path + `: `, 0},
		{config, "", 1},
		{`{"Network":"10.245.0.0/16","Backend":{"Type":"vxlan"}}`, path + ": this agent still runs with the earlier Network: ", 1},
	} {
		before, _ := h.all()
		v.write(t, step.text)
		testwait.Until(t, "what is said of "+step.text, func() bool {
			events, well := h.all()
			return well == step.well && (step.want == "" || len(events) > len(before))
		})
		events, _ := h.all()
		if want := "Warning NetConfChanged: " + step.want; step.want != "" && !strings.HasPrefix(events[len(before)], want) {
			t.Errorf("step %d: %q, want %q", i, events[len(before)], want)
		}
	}
	if events, _ := h.all(); len(events) != 4 {
		t.Errorf("events %q, want four", events)
	}
}

// TestDifferentKeys: how a config is written does not matter, and what it says does.
func TestDifferentKeys(t *testing.T) {
	const config = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":1}}`
	for now, want := range map[string]string{
		config: "",
		`{"backend": {"VNI": 1, "Type": "vxlan"}, "network": "10.244.0.0/16"}`:          "",
		`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":2}}`:                "Backend",
		`{"Network":"10.244.0.0/16"}`:                                                   "Backend",
		`{"network":"10.245.0.0/16","Backend":{"Type":"vxlan","VNI":1},"SubnetLen":25}`: "Network SubnetLen",
	} {
		if got := strings.Join(differentKeys([]byte(config), []byte(now)), " "); got != want {
			t.Errorf("%s: %q, want %q", now, got, want)
		}
	}
}
