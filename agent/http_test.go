package agent

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestServe: probes see what the status is, and the server ends with its context, quietly.
func TestServe(t *testing.T) {
	registry := prometheus.NewRegistry()
	a := New(Config{Planner: Planner{Node: "node1", Network: subnet.Config{Backend: "vxlan"}}, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(registry)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, a.Handler(registry)) }()
	get := func(path string, code int) string {
		t.Helper()
		resp, err := http.Get("http://" + l.Addr().String() + path)
		must(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		if resp.StatusCode != code {
			t.Errorf("%s answers %d %s, want %d", path, resp.StatusCode, body, code)
		}
		return string(body)
	}
	if got := get("/readyz", 503); !strings.Contains(got, "no lease, or not in sync") {
		t.Errorf("not ready: %q", got)
	}
	var r Report
	if err := json.Unmarshal([]byte(get("/status", 200)), &r); err != nil || r.Node != "node1" || r.Backend != "vxlan" || r.NotReady == "" || r.Runner != nil {
		t.Errorf("reports %+v, %v", r, err)
	}
	a.status.update(true, false, nil)
	if got := get("/readyz", 200); got != "ok\n" {
		t.Errorf("ready: %q", got)
	}
	get("/healthz", 200)
	a.status.began = time.Now().Add(-time.Hour)
	get("/healthz", 503)
	want := netstate.NewState(netstate.Sysctl{Name: "a"}, netstate.Sysctl{Name: "b"}, netstate.Bridge{Name: "cni0"})
	a.Metrics.observed(subnet.Snapshot{Peers: make([]subnet.Lease, 3)}, want)
	a.Metrics.finished(result{left: make(netstate.Plan, 4)}, true)
	text := get("/metrics", 200)
	for _, line := range []string{"twill_peers 3", `twill_objects{kind="sysctl"} 2`, `twill_objects{kind="link"} 1`, `twill_objects{kind="chain"} 0`,
		"twill_objects_wrong 4", "twill_ready 1", "twill_snapshots_total 0", "twill_apply_errors_total 0", "twill_contended_total 0",
		"twill_peers_skipped 0", "twill_last_apply_timestamp_seconds 0", "twill_apply_seconds_count 0"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# HELP twill_"); ok && len(strings.Fields(rest)) < 4 {
			t.Errorf("a metric without help: %s", line)
		}
	}
	a.Metrics.finished(result{}, false)
	if text := get("/metrics", 200); !strings.Contains(text, "\ntwill_ready 0\n") || !strings.Contains(text, "\ntwill_objects_wrong 0\n") {
		t.Errorf("not ready any more:\n%s", text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if err := Serve(t.Context(), l, nil); err == nil {
		t.Error("a closed listener is no error")
	}
}
