package main

import (
	"fmt"
	"net/http"
	"sync/atomic"
)

// door answers probes from the first moment on: an agent that waits for the store's first word is alive, and a kubelet that
// killed it would only make it wait again. Then the agent itself answers.
type door struct{ agent atomic.Pointer[http.Handler] }

// open has the agent answer.
func (d *door) open(h http.Handler) { d.agent.Store(&h) }

const starting = "twilld starts: it waits for the network config or for what the store knows of this node; its log says what is missing"

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch h := d.agent.Load(); {
	case h != nil:
		(*h).ServeHTTP(w, r)
	case r.URL.Path == "/healthz":
		fmt.Fprintln(w, starting)
	default:
		http.Error(w, starting, http.StatusServiceUnavailable)
	}
}
