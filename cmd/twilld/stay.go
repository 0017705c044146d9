package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// stay answers the probes until a signal. A cleanup that runs as a DaemonSet is ready when its node is clean, so
// that kubectl rollout status tells when all are.
func stay(ctx context.Context, o *options) error {
	l, err := net.Listen("tcp", net.JoinHostPort(o.healthzIP, strconv.Itoa(o.healthzPort)))
	if err != nil {
		return fmt.Errorf("--healthz-ip %s --healthz-port %d: %w", o.healthzIP, o.healthzPort, err)
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "clean")
	})}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
	}
	return nil
}
