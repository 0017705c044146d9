package install

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPlugins replaces a program while it runs, writes nothing twice, and leaves no temporary files.
func TestPlugins(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "cni", "bin")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(from, "twill"), string(program))
	target := filepath.Join(to, "twill")
	if written, err := Plugins(from, to); err != nil || fmt.Sprint(written) != fmt.Sprint([]string{target}) {
		t.Fatalf("wrote %s, %v; want %s", written, err, target)
	}
	c := exec.Command(target, "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	put(t, filepath.Join(from, "twill"), "another")
	if written, err := Plugins(from, to); err != nil || len(written) != 1 {
		t.Fatalf("over a running program: wrote %s, %v", written, err)
	}
	if data, err := os.ReadFile(target); string(data) != "another" {
		t.Errorf("%s has %d bytes, %v; want the new program", target, len(data), err)
	}
	if written, err := Plugins(from, to); err != nil || len(written) > 0 {
		t.Errorf("wrote %s, %v a second time", written, err)
	}
	if entries, _ := os.ReadDir(to); len(entries) != 1 {
		t.Errorf("%s holds %v, want one program", to, entries)
	}
	if _, err := Plugins(filepath.Join(from, "none"), to); err == nil {
		t.Error("a missing source is no error")
	}
}

func TestRival(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"05-other.conflist", `{"plugins":[{"type":"bridge"}]}`, "05-other.conflist"},
		{"05-other.conf", `{"type":"bridge"}`, "05-other.conf"},
		{"05-other.json", `{"type":"bridge"}`, "05-other.json"},
		{"05-other.conflist", `{"plugins":[]}`, ""},
		{"05-other.conflist", `{`, ""},
		{"05-other.conflist.bak", `{"type":"bridge"}`, ""},
		{".05-other.conf", `{"type":"bridge"}`, ""},
		{"99-other.conflist", `{"plugins":[{"type":"bridge"}]}`, ""},
	} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "10-twill.conflist"), `{"plugins":[{"type":"twill"}]}`)
		put(t, filepath.Join(dir, tt.name), tt.text)
		got, err := Rival(filepath.Join(dir, "10-twill.conflist"))
		if err != nil || got != "" && filepath.Base(got) != tt.want || got == "" && tt.want != "" {
			t.Errorf("%s with %s: %q, %v; want %q", tt.name, tt.text, got, err, tt.want)
		}
	}
	if got, err := Rival("/nonexistent/10-twill.conflist"); got != "" || err != nil {
		t.Errorf("without the directory: %q, %v", got, err)
	}
}

// TestKeeper holds that a deleted plugin comes back, and that a rival is told of once each time it appears.
func TestKeeper(t *testing.T) {
	from, to, conf := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, filepath.Join(from, "twill"), "program")
	rival := filepath.Join(conf, "05-other.conf")
	put(t, rival, `{"type":"bridge"}`)
	events := make(chan string, 100)
	var log safeBuffer
	k := &Keeper{From: from, To: to, Conflist: filepath.Join(conf, "10-twill.conflist"), Every: 5 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Event: func(_, reason, message string) { events <- reason + " " + message }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	eventually(t, "the plugin is installed", func() bool { _, err := os.Stat(filepath.Join(to, "twill")); return err == nil })
	if err := os.Remove(filepath.Join(to, "twill")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deleted plugin is back", func() bool { _, err := os.Stat(filepath.Join(to, "twill")); return err == nil })
	if got := <-events; !strings.HasPrefix(got, "ForeignCNIConfig "+rival+" comes before 10-twill.conflist") {
		t.Errorf("event %q", got)
	}
	if err := os.Remove(rival); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log says that the rival is gone", func() bool { return strings.Contains(log.String(), "any more") })
	put(t, rival, `{"type":"bridge"}`)
	<-events
	cancel()
	if err := <-done; err != nil || len(events) > 0 {
		t.Errorf("%v, %d more events", err, len(events))
	}
}

// TestRivalOfAMoment: what is gone at the next look is nobody's business; the agent renames flannel's conflist.
func TestRivalOfAMoment(t *testing.T) {
	conf := t.TempDir()
	rival := filepath.Join(conf, "10-flannel.conflist")
	var told []string
	k := &Keeper{Conflist: filepath.Join(conf, "10-twill.conflist"), Log: slog.New(slog.DiscardHandler),
		Event: func(_, reason, _ string) { told = append(told, reason) }}
	for range 2 {
		put(t, rival, `{"plugins":[{"type":"flannel"}]}`)
		k.rivals()
		if err := os.Remove(rival); err != nil {
			t.Fatal(err)
		}
		k.rivals()
	}
	if len(told) > 0 {
		t.Errorf("told %v", told)
	}
	put(t, rival, `{"plugins":[{"type":"flannel"}]}`)
	k.rivals()
	k.rivals()
	if len(told) != 1 {
		t.Errorf("told %v of one that stays, want one event", told)
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not so after 5 s: %s", what)
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*safeBuffer)(nil)

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
