package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twill-net/twill/agent/keptfile"
	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/testwait"
)

// list writes a CNI config of plugins, each a type or JSON.
func list(plugins ...string) string {
	for i, p := range plugins {
		if !strings.HasPrefix(p, "{") {
			plugins[i] = `{"type":"` + p + `"}`
		}
	}
	return `{"name":"cbr0","plugins":[` + strings.Join(plugins, ",") + "]}"
}

func TestMergeLists(t *testing.T) {
	for name, tt := range map[string]struct{ earlier, source, have, want string }{
		"behind ours":                   {"", list("twill"), list("twill", "istio-cni"), list("twill", "istio-cni")},
		"between ours":                  {"", list("twill", "portmap"), list("twill", "x", "portmap"), list("twill", "x", "portmap")},
		"in front of ours":              {"", list("twill"), list("x", "twill", "y"), list("twill", "x", "y")},
		"a second one of a kind":        {"", list("twill", "tuning"), list("twill", "tuning", `{"type":"tuning","mac":"x"}`), ""},
		"ours is missing":               {"", list("twill", "portmap"), list("twill", "istio-cni"), list("twill", "portmap", "istio-cni")},
		"ours is altered":               {"", list("twill"), list(`{"type":"twill","mtu":9000}`, "x"), list("twill", "x")},
		"ours are in another order":     {"", list("twill", "a", "b"), list("twill", "b", "x", "a", "y"), list("twill", "a", "b", "x", "y")},
		"ours is there twice":           {"", list("twill"), list("twill", "x", "twill"), list("twill", "x")},
		"the source has another one":    {list("twill", "old"), list("twill", "new"), list("twill", "old", "x"), list("twill", "new", "x")},
		"the source has one less":       {list("twill", "old"), list("twill"), list("twill", `{"type":"old","a":1}`, "x"), list("twill", "x")},
		"a foreign one, once ours":      {list("twill"), list("twill"), list("twill", "old"), list("twill", "old")},
		"the source has other settings": {list("twill"), list(`{"type":"twill","mtu":1400}`), list("twill", "x"), list(`{"type":"twill","mtu":1400}`, "x")},
		"nobody's":                      {"", list("twill"), list("calico", "portmap"), "-"},
		"nothing":                       {"", list("twill"), "", "-"},
		"half a file":                   {"", list("twill"), `{"name":"cbr0","plug`, "-"},
		"a plugin without a type":       {"", list("twill"), list("twill", "{}"), "-"},
		"no list":                       {"", `{"type":"twill"}`, list("twill", "x"), `{"type":"twill"}`},
		"another's key": {"", list("twill"), `{"name":"cbr0","disableCheck":true,"plugins":[{"type":"twill"}]}`,
			`{"name":"cbr0","disableCheck":true,"plugins":[{"type":"twill"}]}`},
		"our key is altered": {"", list("twill"), `{"name":"x","disableCheck":true,"plugins":[{"type":"twill"}]}`,
			`{"name":"cbr0","disableCheck":true,"plugins":[{"type":"twill"}]}`},
		"our key is not ours any more": {`{"name":"cbr0","disableCheck":true,"plugins":[{"type":"twill"}]}`, list("twill"),
			`{"name":"cbr0","disableCheck":true,"plugins":[{"type":"twill"},{"type":"x"}]}`, list("twill", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.want == "" {
				tt.want = tt.have
			}
			got, ok := mergeLists([]byte(tt.earlier), []byte(tt.source), []byte(tt.have))
			if ok != (tt.want != "-") || ok && !sameJSON(got, []byte(tt.want)) {
				t.Errorf("%t:\n%s\nwant\n%s", ok, got, tt.want)
			}
			if again, _ := mergeLists([]byte(tt.source), []byte(tt.source), got); ok && string(again) != string(got) {
				t.Errorf("merged again it is\n%s\nwant\n%s", again, got)
			}
		})
	}
}

// FuzzMergeLists: what is merged is in order, and has all of the source, whatever others wrote.
func FuzzMergeLists(f *testing.F) {
	f.Add(list("twill", "old"), list("twill", "portmap"), list("x", "twill", "old", "y"))
	f.Add("", `{"type":"twill"}`, "null")
	f.Fuzz(func(t *testing.T, earlier, source, have string) {
		got, ok := mergeLists([]byte(earlier), []byte(source), []byte(have))
		ours, isList := parseList([]byte(source))
		if !ok || !isList {
			return
		}
		if again, ok := mergeLists([]byte(source), []byte(source), got); !ok || string(again) != string(got) {
			t.Errorf("merged again it is\n%s\nwant\n%s", again, got)
		}
		there, _ := parseList(got)
		for _, p := range ours.plugins {
			i := slices.IndexFunc(there.plugins, p.same)
			if i < 0 {
				t.Fatalf("%s is missing in\n%s", p.text, got)
			}
			there.plugins = there.plugins[i+1:]
		}
	})
}

// confDir is a runtime's config directory with the agent's CNI config in it, which a Keeper keeps.
type confDir struct {
	*testing.T
	Conflist
	files *keptfile.Keeper
	stop  func()
}

func newConfDir(t *testing.T) *confDir {
	dir := t.TempDir()
	d := &confDir{T: t, Conflist: Conflist{filepath.Join(dir, "source"), filepath.Join(dir, "net.d", "10-twill.conflist")}}
	must(t, os.Mkdir(filepath.Dir(d.Target), 0o755))
	d.start(list("twill"))
	return d
}

// start starts an agent with this source.
func (d *confDir) start(source string) {
	d.Helper()
	d.files = keptfile.New(slog.New(slog.DiscardHandler), &causes.Log{})
	d.install(source)
	ctx, cancel := context.WithCancel(d.Context())
	done := make(chan error)
	go func() { done <- d.files.Run(ctx) }()
	d.stop = sync.OnceFunc(func() { cancel(); must(d.T, <-done) })
	d.Cleanup(d.stop)
}

// install has the agent read this source.
func (d *confDir) install(source string) {
	d.Helper()
	must(d.T, os.WriteFile(d.Source, []byte(source), 0o644))
	must(d.T, d.write(d.files))
}

// kinds returns the types of the plugins in the file, none while it cannot be read.
func (d *confDir) kinds() (all []string) {
	data, _ := os.ReadFile(d.Target)
	l, _ := parseList(data)
	for _, p := range l.plugins {
		all = append(all, p.kind)
	}
	return all
}

// holds waits until the file has these plugins, and then, that Check has nothing to put back.
func (d *confDir) holds(want ...string) {
	d.Helper()
	testwait.Nil(d.T, "the file has "+strings.Join(want, ", "), func() error {
		if got := d.kinds(); !slices.Equal(got, want) || !d.files.Check() {
			return fmt.Errorf("it has %s", strings.Join(got, ", "))
		}
		return nil
	})
}

// insert adds a plugin as Istio's installer does: it decodes all, appends its own, and writes what it encodes beside, to
// rename it.
func (d *confDir) insert(kind string) {
	d.Helper()
	data, err := os.ReadFile(d.Target)
	must(d.T, err)
	var all map[string]any
	must(d.T, json.Unmarshal(data, &all))
	plugins := slices.DeleteFunc(all["plugins"].([]any), func(p any) bool { return p.(map[string]any)["type"] == kind })
	all["plugins"] = append(plugins, map[string]any{"type": kind, "name": kind, "ipam": map[string]any{}})
	data, err = json.MarshalIndent(all, "", "  ")
	must(d.T, err)
	beside := filepath.Join(filepath.Dir(d.Target), "istio-tmp")
	must(d.T, os.WriteFile(beside, data, 0o600))
	must(d.T, os.Rename(beside, d.Target))
}

// TestChainedPlugins: what a mesh writes into the CNI config stays there, whatever the agent does to its own part.
func TestChainedPlugins(t *testing.T) {
	d := newConfDir(t)
	d.insert("istio-cni")
	d.insert("linkerd-cni")
	d.holds("twill", "istio-cni", "linkerd-cni")
	d.install(list("twill", "portmap"))
	d.holds("twill", "portmap", "istio-cni", "linkerd-cni")
	d.install(list(`{"type":"twill","mtu":1400}`))
	d.holds("twill", "istio-cni", "linkerd-cni")
	if data, _ := os.ReadFile(d.Target); !strings.Contains(string(data), "1400") {
		t.Errorf("the new source is not in\n%s", data)
	}
	must(t, os.WriteFile(d.Target, []byte(list("calico")), 0o644))
	d.holds("twill", "istio-cni", "linkerd-cni")
	must(t, os.Remove(d.Target))
	d.holds("twill", "istio-cni", "linkerd-cni")

	d.stop()
	d.start(list("twill", "tuning"))
	d.holds("twill", "tuning", "istio-cni", "linkerd-cni")
	d.stop()
	d.start(list("twill"))
	d.holds("twill", "istio-cni", "linkerd-cni")
}

// TestDuel: a program that takes out what the agent puts in is reported, and one that adds is not.
func TestDuel(t *testing.T) {
	d := newConfDir(t)
	for range 20 {
		d.insert("istio-cni")
		d.holds("twill", "istio-cni")
	}
	if got := d.files.Contended(); len(got) > 0 {
		t.Errorf("contended are %q, want none", got)
	}
	var g sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); g.Wait() })
	g.Go(func() {
		for ctx.Err() == nil {
			if slices.Contains(d.kinds(), "twill") {
				_ = os.WriteFile(d.Target, []byte(list("istio-cni")), 0o644)
			}
		}
	})
	testwait.Until(t, "the duel is reported", func() bool { return slices.Equal(d.files.Contended(), []string{d.Target}) })
}
