package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/steps"
	"github.com/twill-net/twill/internal/testwait"
)

// TestStartHangs: /healthz says which step of the start takes long, and fails when one hangs that does not wait for the
// store.
func TestStartHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &startHandler{steps: &steps.Table{}}
		probe := func(want string) {
			t.Helper()
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			_, rest, _ := strings.Cut(answer.Body.String(), "\n")
			if got := fmt.Sprintf("%d %q", answer.Code, rest); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		asked := h.steps.BeginStore("asks the store")
		time.Sleep(time.Second)
		probe(`200 ""`)
		time.Sleep(time.Hour)
		probe(`200 "since 1h0m1s: asks the store\n"`)
		asked()
		defer h.steps.Begin("waits for a lock")()
		time.Sleep(40 * time.Second)
		probe(`200 "since 40s: waits for a lock\n"`)
		time.Sleep(3 * time.Minute)
		probe(`503 "since 3m40s: waits for a lock\n"`)
	})
}

// TestBootIsBounded: a plugin that holds the lock of the reservations does not hold the start up; the agent is told when
// pods may be added.
func TestBootIsBounded(t *testing.T) {
	before := bootLimit
	bootLimit = 100 * time.Millisecond
	t.Cleanup(func() { bootLimit = before })
	dir := filepath.Join(t.TempDir(), "cbr0")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "10.244.1.7")
	if err := os.WriteFile(old, []byte("container\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	o, err := parseFlags([]string{"--reservations-dir=" + dir, "--subnet-file=" + filepath.Join(dir, "none"), "--lease-file=x"}, noEnv, nil)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	p := &parts{config: agent.Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Steps: &steps.Table{}}, metrics: prometheus.NewRegistry()}
	servePods(ctx, group, o, p)
	select {
	case <-p.config.Freed:
	case <-time.After(testwait.Limit):
		t.Error("the start waits for the lock")
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "free the addresses of an earlier boot") || !strings.Contains(log.String(), dir+"/lock") {
		t.Errorf("the log does not name the lock:\n%s", log.String())
	}
}
