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
	"sync"
	"testing"
	"time"
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

func (l *log) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text.Bytes(), []byte(s))
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
	defer end.stop()
	expect := func(want string, happened bool) {
		t.Helper()
		select {
		case <-changes:
			if !happened {
				t.Error("a change was told that is none")
			}
		case <-time.After(map[bool]time.Duration{true: 5 * time.Second, false: 300 * time.Millisecond}[happened]):
			if happened {
				t.Error("no change was told")
			}
		}
		if got := fmt.Sprint(f.Exempt()); got != want {
			t.Errorf("exempt are %s, want %s", got, want)
		}
	}
	end.start()
	expect("[10.0.0.0/8]", false)
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: [fd00::/8]\nresyncInterval: 1h")
	expect("[fd00::/8]", true)
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: [fd00::/8]\nresyncInterval: 2h")
	expect("[fd00::/8]", false)
	for _, bad := range []struct{ text, want string }{
		{"nonMasqueradeCIDRs: 10.0.0.0/8", "want a list of networks"},
		{"nonMasqueradeCIDRs: [10.0.0.0/8]", "too many for the test"},
	} {
		m.put(bad.text)
		expect("[fd00::/8]", false)
		select {
		case e := <-events:
			if want := "Warning MasqueradeConfigInvalid ip-masq-agent's config " + path + ": "; !bytes.HasPrefix([]byte(e), []byte(want)) {
				t.Errorf("the event is %q, want it to begin with %q", e, want)
			}
		case <-time.After(5 * time.Second):
			t.Error("there is no event")
		}
		if !out.has(bad.want) {
			t.Errorf("the log has no %q", bad.want)
		}
	}
	m.put("masqLinkLocal: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: []\nresyncInterval: 1s")
	expect("[]", true)
	if err := os.RemoveAll(m.dir); err != nil { // the defaults, but they are more than check allows
		t.Fatal(err)
	}
	expect("[]", false)
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("nonMasqueradeCIDRs: []"), 0o644); err != nil {
		t.Fatal(err)
	}
	expect("[169.254.0.0/16 fe80::/10]", true) // at the resyncInterval
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
