package daemon

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/internal/steps"
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
//
// A step that is none of the store's and takes three minutes hangs, as does a round of the agent's loop.
type startHandler struct {
	steps *steps.Table
	agent atomic.Pointer[http.Handler]
}

// stuckAfter is how long a step may take.
const stuckAfter = 3 * time.Minute

// starting says what the start does, and whether it hangs.
func (s *startHandler) starting() (text string, hangs bool) {
	text = "twilld starts: it waits for the network config or for what the store knows of this node; " +
		"its log says what is missing"
	for _, step := range s.steps.Slow() {
		text += "\n" + step.String()
		hangs = hangs || !step.Store && time.Since(step.Since) > stuckAfter
	}
	return text, hangs
}

// ServeHTTP implements http.Handler.
func (s *startHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := s.agent.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	text, hangs := s.starting()
	if r.URL.Path == "/healthz" && !hangs {
		fmt.Fprintln(w, text)
		return
	}
	http.Error(w, text, http.StatusServiceUnavailable)
}

// cleanHandler answers probes after a cleanup. A cleanup that runs as a DaemonSet is ready when its
// node is clean, so that kubectl rollout status ends when all are.
func cleanHandler(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "clean") }
