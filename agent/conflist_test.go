package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/agent/keptfile"
	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/testwait"
)

func TestConflist(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(name string) bool { _, err := os.Stat(path(name)); return err == nil }
	c := Conflist{Source: path("source"), Target: path("10-twill.conflist")}
	files := keptfile.New(slog.New(slog.DiscardHandler), &causes.Log{})

	put("source", "{\n  \"plugins\": [],\n}")
	want := "source: want a conflist with a list of plugins: malformed JSON at line 3, column 1: "
	if err := c.write(files); err == nil || !strings.Contains(err.Error(), want) || exists("10-twill.conflist") {
		t.Errorf("a source that is not JSON: got %v, want %q in it", err, want)
	}
	put("source", `{"plugins":[{"type":"twill"}]}`)
	put(flannelConflist, `{"plugins":[{"type":"bridge"}]}`)
	for range 2 {
		if err := c.write(files); err != nil {
			t.Fatal(err)
		}
	}
	if !exists(flannelConflist) {
		t.Error("a conflist that is not flannel's was taken away")
	}
	before, _ := os.Stat(c.Target)
	put(flannelConflist, `{"plugins":[{"type":"flannel"},{"type":"portmap"}]}`)
	if err := c.write(files); err != nil {
		t.Fatal(err)
	}
	if exists(flannelConflist) || !exists(flannelConflist+replaced) {
		t.Error("flannel's conflist is still in the way")
	}
	if after, _ := os.Stat(c.Target); !os.SameFile(before, after) {
		t.Error("an unchanged file was written again")
	}
	if err := os.Remove(c.Target); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "a removed conflist comes back", func() bool {
		return c.write(files) == nil && exists("10-twill.conflist")
	})
	if list, _ := filepath.Glob(path(".twill-*")); len(list) > 0 {
		t.Errorf("leftovers: %v", list)
	}
}

// TestBadConflist: a CNI config that cannot be taken keeps a node without any from becoming ready,
// and hurts no other.
func TestBadConflist(t *testing.T) {
	const good = `{"plugins":[{"type":"twill"}]}`
	for name, spoil := range map[string]func(c Conflist) error{
		"a stray comma": func(c Conflist) error { return os.WriteFile(c.Source, []byte(good+","), 0o644) },
		"no source":     func(c Conflist) error { return os.Remove(c.Source) },
		"a directory in its place": func(c Conflist) error {
			return errors.Join(os.Remove(c.Source), os.Mkdir(c.Source, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, log := newModel(t, nil), &bytes.Buffer{}
			dir := t.TempDir()
			m.agent.Log = slog.New(slog.NewTextHandler(log, nil))
			store := &reporter{Store: m.agent.Store}
			m.agent.Store = store
			m.agent.Settings.Conflist = Conflist{Source: filepath.Join(dir, "source"), Target: filepath.Join(dir, "10-twill.conflist")}
			must(t, os.WriteFile(m.agent.Settings.Conflist.Source, []byte("{"), 0o644))
			reconcile := func() time.Duration {
				m.agent.reconcile(t.Context())
				m.agent.writeHanded(<-m.agent.outputs)
				return m.agent.reconcile(t.Context())
			}
			reconcile()
			if err := m.agent.status.Ready(); err == nil || !strings.Contains(err.Error(), "malformed JSON") {
				t.Errorf("without any CNI config: %v", err)
			}
			must(t, os.WriteFile(m.agent.Settings.Conflist.Source, []byte(good), 0o644))
			reconcile()
			must(t, m.agent.status.Ready())
			must(t, spoil(m.agent.Settings.Conflist))
			for range 3 {
				if wait := reconcile(); wait != resync {
					t.Errorf("it reconciles again after %s", wait)
				}
			}
			if m.agent.status.Ready() != nil || !m.agent.status.degradedSince.IsZero() {
				t.Errorf("the data path counts as wrong since %s: %v", m.agent.status.degradedSince, m.agent.status.Ready())
			}
			if got := strings.Count(log.String(), "the CNI config stays as it was"); got != 1 {
				t.Errorf("it is logged %d times, want once:\n%s", got, log)
			}
			if len(store.events) != 1 || !strings.HasPrefix(store.events[0], "ConflistNotWritten: ") {
				t.Errorf("the events are %q, want one", store.events)
			}
			if data, err := os.ReadFile(m.agent.Settings.Conflist.Target); err != nil || string(data) != good {
				t.Errorf("the installed one is %q, %v", data, err)
			}
		})
	}
}

// TestStrangerBesideConflist: what somebody put in the place of the file that says what was installed keeps no CNI config
// from being written.
func TestStrangerBesideConflist(t *testing.T) {
	dir := t.TempDir()
	c := Conflist{Source: filepath.Join(dir, "source"), Target: filepath.Join(dir, "10-twill.conflist")}
	must(t, os.WriteFile(c.Source, []byte(`{"plugins":[{"type":"twill"}]}`), 0o644))
	must(t, os.Mkdir(c.Installed(), 0o755))
	must(t, c.write(keptfile.New(slog.New(slog.DiscardHandler), &causes.Log{})))
}

// TestNotFlannels: a file that only has the name of flannel's conflist stays where it is.
func TestNotFlannels(t *testing.T) {
	for text, goes := range map[string]bool{
		`{}`: false, `{"plugins":[]}`: false, `{"plugins":[{"type":"bridge"}]}`: false, `{`: false,
		`{"plugins":[{"type":"flannel"}]}`: true,
	} {
		c := Conflist{Target: filepath.Join(t.TempDir(), "10-twill.conflist")}
		path := filepath.Join(filepath.Dir(c.Target), flannelConflist)
		must(t, os.WriteFile(path, []byte(text), 0o644))
		must(t, c.retireFlannel())
		if _, err := os.Stat(path); (err != nil) != goes {
			t.Errorf("%s: %v, want that it goes: %t", text, err, goes)
		}
	}
}
