package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler returns what answers /healthz, /readyz, /status, /history and /metrics.
func (a *Agent) Handler(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", probe(a.Alive))
	mux.Handle("/readyz", probe(a.Ready))
	mux.Handle("/status", answer(a.report))
	mux.Handle("/history", answer(func() History { return a.history.report(a.Node) }))
	mux.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	return mux
}

// answer answers with JSON.
func answer[T any](ask func() T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(ask()) // who asked has gone away
	})
}

// Alive returns why the agent should be restarted, nil if it should not.
func (a *Agent) Alive() error { return errors.Join(a.status.Live(), a.files.Lost()) }

// Leased reports whether subnet.env has this node's lease, the store's or the checkpoint's.
func (a *Agent) Leased() bool { return a.status.isLeased() }

// Serve answers on l until ctx is done. Whoever asks has little of the agent: a few connections, half a minute for an answer
// and as long between two requests.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10}
	l = &budgeted{Listener: l, most: connectionBudget()}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve health and metrics on %s: %w", l.Addr(), err)
	}
	return nil
}

// probe answers 200 "ok", or 503 with the reason.
func probe(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}
