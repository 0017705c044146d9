package chaos

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

type mishap struct {
	name, says string
	do         func(w http.ResponseWriter, r *http.Request, pass http.Handler)
}

// status answers with an error of the API server.
func status(code int, reason string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, reason, code)
	}
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

var mishaps = []mishap{
	{"slow", "every answer takes five seconds", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		sleep(r.Context(), 5*time.Second)
		pass.ServeHTTP(w, r)
	}},
	{"429", "it has too many requests", status(http.StatusTooManyRequests, "TooManyRequests")},
	{"403", "the agent has no rights any more", status(http.StatusForbidden, "Forbidden")},
	{"401", "the agent's token has expired", status(http.StatusUnauthorized, "Unauthorized")},
	{"500", "it fails", status(http.StatusInternalServerError, "InternalError")},
	{"410", "every watch is told that its version is gone", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if isWatch(r) {
			status(http.StatusGone, "Expired")(w, r, pass)
			return
		}
		pass.ServeHTTP(w, r)
	}},
	{"watch-closed", "every watch is closed after 50 ms", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if isWatch(r) {
			ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
			defer cancel()
			r = r.WithContext(ctx)
		}
		pass.ServeHTTP(w, r)
	}},
	{"cut-off", "answers end in the middle", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		rec := httptest.NewRecorder()
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		defer cancel()
		pass.ServeHTTP(rec, r.WithContext(ctx))
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
		panic(http.ErrAbortHandler)
	}},
	{"garbage", "a captive portal answers instead", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>please log in</html>")
	}},
	{"silent", "it takes requests, does not answer, and dies", func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		sleep(r.Context(), 2*time.Second)
		panic(http.ErrAbortHandler)
	}},
	{"stale", "lists are answered from the past", (&past{}).serve},
}

// past answers lists with what the first one was answered.
type past struct {
	mu    sync.Mutex
	lists map[string]*httptest.ResponseRecorder
}

func (p *past) serve(w http.ResponseWriter, r *http.Request, pass http.Handler) {
	if isWatch(r) || r.Method != http.MethodGet || strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		pass.ServeHTTP(w, r)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lists == nil {
		p.lists = map[string]*httptest.ResponseRecorder{}
	}
	key := r.Header.Get("Accept") + r.URL.String()
	if p.lists[key] == nil {
		p.lists[key] = httptest.NewRecorder()
		pass.ServeHTTP(p.lists[key], r)
	}
	w.Header().Set("Content-Type", p.lists[key].Header().Get("Content-Type"))
	_, _ = w.Write(p.lists[key].Body.Bytes())
}

func sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// TestKube has each mishap happen between one agent and its API server while a node joins that the agent cannot hear
// of, or of which it must hear all the same. Packets between the pods that were there are never lost; when it is over
// the new node's pods are reached.
func TestKube(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "mishapkube", Store: lab.Kube, Nodes: 2, Pods: 1})
	n := l.Nodes()[0]
	p := newProxy(t, l, n)
	agent := runAgent(t, n, "--kubeconfig-file="+p.kubeconfig())
	var table strings.Builder
	for _, m := range append(mishaps, mishap{name: "killed", says: "it is away"}) {
		t.Run(m.name, func(t *testing.T) {
			took := p.suffer(t, l, m)
			fmt.Fprintf(&table, "| %s | %d ms |\n", m.says, took.Milliseconds())
			if !agent.Running() {
				t.Fatalf("the agent has ended, see %s", n.Log())
			}
		})
	}
	t.Log("\n| the API server: | the missed node is reached after |\n|---|---|\n" + table.String())
}

// suffer returns how long after the mishap's end the node that joined meanwhile is reached.
func (p *proxy) suffer(t *testing.T, l *lab.Lab, m mishap) time.Duration {
	from, to := l.Nodes()[0].Pods()[0], l.Nodes()[1].Pods()[0]
	stream, err := from.Stream(to.Addrs[0], 10*time.Millisecond)
	must(t, err)
	defer stream.Close()
	goesOn(t, stream, 5)
	before := stream.Mark()
	if m.do == nil {
		p.close()
	} else {
		p.mishap.Store(&m.do)
		p.cut()
	}
	testwait.Pause(t, 300*time.Millisecond, "the agent meets the mishap")
	joined, err := l.Join(t.Context())
	must(t, err)
	announce(t, joined, p.node)
	testwait.Pause(t, 1500*time.Millisecond, "the mishap lasts")
	if m.do == nil {
		p.open()
	}
	p.mishap.Store(nil)
	over := time.Now()
	mustReach(t, from, joined.Pods()[0])
	took := time.Since(over)
	loss, err := stream.Between(t.Context(), before, stream.Mark())
	must(t, err)
	if loss.Lost > 0 {
		t.Errorf("%s between pods that have nothing to do with it", loss)
	}
	must(t, joined.Leave(t.Context()))
	return took
}

// announce has a host of an address that another one had be known by its own MAC, as hosts do when they start.
func announce(t *testing.T, n, to *lab.Node) {
	t.Helper()
	_, err := n.Ping(t.Context(), host.Ping{To: to.Underlay()[0], Timeout: testwait.Limit})
	must(t, err)
}

// mustReach waits until one pod reaches another. How long that took after a mishap is in the log, and in
// Documentation/reliability.md.
func mustReach(t *testing.T, from, to *lab.Pod) {
	t.Helper()
	testwait.Nil(t, from.ID()+" reaches "+to.ID(), func() error {
		_, err := from.Ping(t.Context(), host.Ping{To: to.Addrs[0], Timeout: 50 * time.Millisecond})
		return err
	})
}
