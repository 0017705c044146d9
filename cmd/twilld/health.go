package main

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
)

// listenHealthz opens the port of the probes.
func listenHealthz(o *options) (net.Listener, error) {
	l, err := net.Listen("tcp", o.healthz())
	if err != nil {
		return nil, fmt.Errorf("--healthz-ip %s --healthz-port %d: %w", o.healthzIP, o.healthzPort, err)
	}
	return l, nil
}

// startHandler answers probes from the first moment on: an agent that waits for the store is alive,
// and a kubelet that killed it would only make it wait again. When the agent is built, the agent
// answers.
type startHandler struct{ agent atomic.Pointer[http.Handler] }

const starting = "twilld starts: it waits for the network config or for what the store knows of this node; " +
	"its log says what is missing"

// ServeHTTP implements http.Handler.
func (s *startHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch h := s.agent.Load(); {
	case h != nil:
		(*h).ServeHTTP(w, r)
	case r.URL.Path == "/healthz":
		fmt.Fprintln(w, starting)
	default:
		http.Error(w, starting, http.StatusServiceUnavailable)
	}
}

// cleanHandler answers probes after a cleanup. A cleanup that runs as a DaemonSet is ready when its
// node is clean, so that kubectl rollout status ends when all are.
func cleanHandler(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "clean") }
