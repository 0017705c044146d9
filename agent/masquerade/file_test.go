package masquerade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
)

// mount is a ConfigMap's volume: the file is a link into the directory that the link ..data names.
type mount struct {
	*testing.T
	dir string
	n   int
}

func (m *mount) put(text string) {
	m.Helper()
	m.n++
	version := fmt.Sprintf("..v%d", m.n)
	for _, err := range []error{
		os.Mkdir(filepath.Join(m.dir, version), 0o755),
		os.WriteFile(filepath.Join(m.dir, version, "config"), []byte(text), 0o644),
		os.Symlink(version, filepath.Join(m.dir, "..tmp")),
		os.Rename(filepath.Join(m.dir, "..tmp"), filepath.Join(m.dir, "..data")),
	} {
		if err != nil {
			m.Fatal(err)
		}
	}
}

// log collects what is logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(s))
}

// watched reports whether this process watches files.
func watched() bool {
	paths, _ := filepath.Glob("/proc/self/fdinfo/*")
	for _, p := range paths {
		if info, err := os.ReadFile(p); err == nil && bytes.Contains(info, []byte("inotify wd:")) {
			return true
		}
	}
	return false
}

// TestFile: a ConfigMap's change counts at once, long before the resyncInterval; a bad one changes nothing and is told.
func TestFile(t *testing.T) {
	m := &mount{T: t, dir: t.TempDir()}
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: [10.0.0.0/8]\nresyncInterval: 1h")
	path := filepath.Join(m.dir, "ip-masq-agent")
	if err := os.Symlink("..data/config", path); err != nil {
		t.Fatal(err)
	}
	check := func(exempt []netip.Prefix) error {
		if len(exempt) > 2 {
			return errors.New("too many for the test")
		}
		return nil
	}
	var out log
	events := make(chan string, 10)
	f, err := Open(path, check, slog.New(slog.NewTextHandler(&out, nil)), func(kind, reason, message string) {
		events <- kind + " " + reason + " " + message
	})
	if err != nil {
		t.Fatal(err)
	}
	changes, end := make(chan struct{}, 10), follow(t, f)
	end.changed = changes
	exempt := func(want string) {
		t.Helper()
		if got := fmt.Sprint(f.Exempt()); got != want {
			t.Errorf("exempt are %s, want %s", got, want)
		}
	}
	changed := func(want string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(testwait.Limit):
			t.Fatal("no change was told")
		}
		exempt(want)
	}
	end.start()
	testwait.Until(t, "the file is watched", watched)
	exempt("[10.0.0.0/8]")
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: [fd00::/8]\nresyncInterval: 1h")
	changed("[fd00::/8]")
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: [fd00::/8]\nresyncInterval: 2h")
	testwait.Until(t, "the other interval is read", func() bool { return out.count("ip-masq-agent's config changed") == 2 })
	exempt("[fd00::/8]")
	refused := func(want string) {
		t.Helper()
		select {
		case e := <-events:
			begin := "Warning MasqueradeConfigInvalid ip-masq-agent's config " + path + ": "
			if !strings.HasPrefix(e, begin) || !strings.Contains(e, want) {
				t.Errorf("the event is %q, want it to begin with %q and have %q", e, begin, want)
			}
		case <-time.After(testwait.Limit):
			t.Fatal("there is no event")
		}
		if out.count(want) == 0 {
			t.Errorf("the log has no %q", want)
		}
	}
	for _, bad := range []struct{ text, want string }{
		{"nonMasqueradeCIDRs: 10.0.0.0/8", "want a list of networks"},
		{"nonMasqueradeCIDRs: [10.0.0.0/8]", "too many for the test"},
	} {
		m.put(bad.text)
		refused(bad.want)
		exempt("[fd00::/8]")
	}
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: []\nresyncInterval: 1s")
	changed("[]")
	if err := os.RemoveAll(m.dir); err != nil { // the defaults, but they are more than check allows
		t.Fatal(err)
	}
	refused("too many for the test")
	exempt("[]")
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("nonMasqueradeCIDRs: []"), 0o644); err != nil {
		t.Fatal(err)
	}
	changed("[169.254.0.0/16 fe80::/10]") // at the resyncInterval
	end.stop()
	if len(changes) > 0 {
		t.Errorf("%d changes were told that are none", len(changes))
	}
	if _, err := Open(path, func([]netip.Prefix) error { return errors.New("refused") }, slog.Default(), nil); err == nil {
		t.Error("Open takes what check refuses")
	}
}

// TestNoFile: without a file nothing is exempt, and nothing runs.
func TestNoFile(t *testing.T) {
	var f *File
	if got := f.Exempt(); got != nil {
		t.Errorf("exempt are %v", got)
	}
	if err := f.Run(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// following is a File that runs.
type following struct {
	*testing.T
	file    *File
	changed chan struct{}
	cancel  context.CancelFunc
	ended   chan error
}

func follow(t *testing.T, f *File) *following {
	return &following{T: t, file: f, ended: make(chan error, 1)}
}

func (f *following) start() {
	ctx, cancel := context.WithCancel(f.Context())
	f.cancel = cancel
	go func() { f.ended <- f.file.Run(ctx, func() { f.changed <- struct{}{} }) }()
}

func (f *following) stop() {
	f.cancel()
	if err := <-f.ended; err != nil {
		f.Error(err)
	}
}
