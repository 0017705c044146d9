package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/target"
)

// fake is a source that answers what it was told.
type fake struct {
	mu     sync.Mutex
	status doctor.StatusReport
	err    error
}

func (f *fake) set(err error, nodes ...doctor.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Nodes, f.err = nodes, err
}

func (f *fake) View() target.View {
	return target.View{Kind: "lab", Name: "<script>alert(1)</script>"}
}

func (f *fake) Status(context.Context) (doctor.StatusReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status, f.err
}

func (f *fake) Places(context.Context) (target.Places, error) {
	return target.Places{Pods: []target.Pod{{ID: "</script><script>alert(1)</script>"}}}, nil
}

func (f *fake) Doctor(context.Context, doctor.Probing, ...netip.Addr) (doctor.Survey, error) {
	return doctor.Survey{}, nil
}

func (f *fake) Trace(_ context.Context, from, to string, _ target.Tracing) (doctor.Trace, error) {
	return doctor.Trace{Src: from, Dst: to}, nil
}

func (f *fake) History(context.Context, time.Duration) (doctor.HistoryReport, error) {
	return doctor.HistoryReport{}, errors.New("the agent is too old")
}

// serve serves a source, and returns the page's address and its token.
func serve(t *testing.T, s target.Source) (base, token string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	address, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- New(s, nil).Serve(ctx, l, func(a string) { address <- a }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	base, token, _ = strings.Cut(<-address, "/#")
	return base, token
}

func request(t *testing.T, method, url, token string, alter func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if alter != nil {
		alter(r)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if got := answer.Header.Get("Content-Security-Policy"); got != policy {
		t.Errorf("%s %s has the Content-Security-Policy %q, want %q", method, url, got, policy)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// TestGuard asks as other pages, other users and other names would.
func TestGuard(t *testing.T) {
	t.Parallel()
	base, token := serve(t, &fake{})
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	port := base[strings.LastIndex(base, ":"):]
	for name, c := range map[string]struct {
		path, token string
		alter       func(*http.Request)
		want        int
	}{
		"token":                  {"/api/view", token, nil, http.StatusOK},
		"no token":               {"/api/view", "", nil, http.StatusUnauthorized},
		"wrong token":            {"/api/view", token[1:] + "x", nil, http.StatusUnauthorized},
		"token as a query":       {"/api/view?token=" + token, "", nil, http.StatusUnauthorized},
		"page without token":     {"/", "", nil, http.StatusOK},
		"script without token":   {"/page.js", "", nil, http.StatusOK},
		"not a file of the page": {"/../server.go", "", nil, http.StatusNotFound},
		"rebound name":           {"/api/view", token, func(r *http.Request) { r.Host = "evil.example" + port }, http.StatusForbidden},
		"rebound name, page":     {"/", "", func(r *http.Request) { r.Host = "evil.example" }, http.StatusForbidden},
		"localhost":              {"/api/view", token, func(r *http.Request) { r.Host = "localhost" + port }, http.StatusOK},
		"own origin":             {"/api/view", token, header("Origin", base), http.StatusOK},
		"foreign origin":         {"/api/view", token, header("Origin", "http://evil.example"), http.StatusForbidden},
		"origin null":            {"/api/view", token, header("Origin", "null"), http.StatusForbidden},
		"other port's page":      {"/api/view", token, header("Origin", "http://127.0.0.1:1"), http.StatusForbidden},
		"cross-site fetch":       {"/page.js", "", header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		"unknown question":       {"/api/nothing", token, nil, http.StatusNotFound},
		"no classroom":           {"/api/faults", token, nil, http.StatusNotFound},
		"other lab":              {"/api/view?of=x", token, nil, http.StatusNotFound},
		"bad time":               {"/api/history?since=yesterday", token, nil, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			got, body := request(t, http.MethodGet, base+c.path, c.token, c.alter)
			if got != c.want {
				t.Errorf("%s is answered with %d %s, want %d", c.path, got, body, c.want)
			}
		})
	}
	if got, body := request(t, http.MethodPost, base+"/api/walk", token, nil); got != http.StatusBadGateway || !strings.Contains(body, "only in a lab") {
		t.Errorf("a walk without a lab is answered with %d %s", got, body)
	}
}

// TestLoopbackOnly wants no other listener served.
func TestLoopbackOnly(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = New(&fake{}, nil).Serve(t.Context(), l, func(string) { t.Error("it is served") })
	if err == nil || !strings.Contains(err.Error(), "loopback only") {
		t.Errorf("the error is %v, want one that says loopback only", err)
	}
}

// TestUpdates follows a source whose nodes change, go and cannot be asked.
func TestUpdates(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.set(nil, doctor.Status{Node: "node10"}, doctor.Status{Node: "node2"})
	server := New(f, nil)
	server.main.every = time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	updates := make(chan Update)
	go func() {
		_ = server.main.follow(ctx, func(u *Update) error {
			if u != nil {
				updates <- *u
			}
			return ctx.Err()
		})
	}()
	u := <-updates
	if len(u.Nodes) != 2 || u.Nodes[0].Node != "node2" || u.Places == nil || len(u.Places.Pods) != 1 {
		t.Fatalf("the first update is %+v, want both nodes by their numbers, and all places", u)
	}
	f.set(nil, doctor.Status{Node: "node10", Changes: 7})
	if u = <-updates; len(u.Nodes) != 1 || u.Nodes[0].Changes != 7 || len(u.Gone) != 1 || u.Gone[0] != "node2" || u.Places != nil {
		t.Errorf("the second update is %+v, want the changed node, and that node2 is gone", u)
	}
	f.set(errors.New("nobody answers"))
	if u = <-updates; u.Error != "nobody answers" || len(u.Nodes)+len(u.Gone) != 0 {
		t.Errorf("the third update is %+v, want the error alone", u)
	}
	f.set(nil, doctor.Status{Node: "node10", Changes: 7}, doctor.Status{Node: "node2"})
	if u = <-updates; u.Error != "" || len(u.Nodes) != 1 || u.Nodes[0].Node != "node2" {
		t.Errorf("the fourth update is %+v, want node2 again", u)
	}
}

// TestStream reads updates as the page does.
func TestStream(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.set(nil, doctor.Status{Node: "node1"})
	base, token := serve(t, f)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/updates", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line, err := bufio.NewReader(answer.Body).ReadBytes('\n')
	var u Update
	if err = errors.Join(err, json.Unmarshal(line, &u)); err != nil || len(u.Nodes) != 1 {
		t.Errorf("the first line is %s (%v), want one node", line, err)
	}
}

// TestSaved wants no text of the cluster to end the element that holds it, and policies that let only the page's own script run.
func TestSaved(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.set(nil, doctor.Status{Node: "</script><img src=x onerror=alert(1)>"})
	saved, err := Save(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := saved.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if n := strings.Count(page, "</script>"); n != 2 {
		t.Errorf("the file has %d ends of scripts, want those of its data and its program", n)
	}
	if strings.Contains(page, "<img") || strings.Contains(page, "<script>alert") {
		t.Error("the file has elements that a node's name made")
	}
	for _, want := range []string{"default-src &#39;none&#39;", "script-src &#39;sha256-", "<title>Twill: lab &lt;script&gt;"} {
		if !strings.Contains(page, want) && !strings.Contains(page, strings.ReplaceAll(want, "&#39;", "'")) {
			t.Errorf("the file does not contain %s:\n%.600s", want, page)
		}
	}
	_, rest, _ := strings.Cut(page, `id="saved">`)
	data, _, _ := strings.Cut(rest, "</script>")
	var again Saved
	if err := json.Unmarshal([]byte(data), &again); err != nil || again.Update.Nodes[0].Node != "</script><img src=x onerror=alert(1)>" {
		t.Errorf("its data is %.300s (%v), want what was saved", data, err)
	}
}

// BenchmarkTake takes a status of 1,000 nodes of which one has changed.
func BenchmarkTake(b *testing.B) {
	nodes := make([]doctor.Status, 1000)
	for i := range nodes {
		nodes[i] = doctor.Status{Node: string(rune('a'+i%26)) + time.Duration(i).String(), Peers: make([]doctor.PeerStatus, 999)}
	}
	f := newFeed(&fake{}, time.Hour)
	for b.Loop() {
		nodes[0].Changes++
		f.take(doctor.StatusReport{Nodes: nodes}, nil, nil)
	}
}
