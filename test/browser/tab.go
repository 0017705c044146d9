// Package browser opens the page of twillctl ui in Debian's chromium: what it shows, how it is used without a mouse, what
// axe-core says of it, and that it asks nobody but its own server.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/twill-net/twill/ui"
)

// patience is how long the page may take for anything.
const patience = 60 * time.Second

// tab is one of a browser of its own.
type tab struct {
	t        *testing.T
	ctx      context.Context
	mu       sync.Mutex
	problems []string
}

// open opens an address in a new browser. The test fails if the page writes an error to the console, or asks another
// server than its own.
func open(t *testing.T, address string) *tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-gpu", true),
		chromedp.WSURLReadTimeout(patience))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, 3*patience)
	t.Cleanup(stop)
	p := &tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, p.watch)
	p.do(network.Enable(), log.Enable(), chromedp.EmulateViewport(1440, 900), chromedp.Navigate(address))
	p.wait(`document.body.dataset.ready === "true"`)
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Error(problem)
		}
	})
	return p
}

// watch notes what a page must not do.
func (p *tab) watch(event any) {
	problem := ""
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			problem = fmt.Sprintf("the console has %s: %s", e.Type, e.Args[0].Value)
		}
	case *runtime.EventExceptionThrown:
		problem = "it throws " + e.ExceptionDetails.Error()
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			problem = "the log has: " + e.Entry.Text + " " + e.Entry.URL
		}
	case *network.EventRequestWillBeSent:
		u, err := url.Parse(e.Request.URL)
		if err != nil || u.Host != "" && u.Hostname() != "127.0.0.1" {
			problem = "it asks " + e.Request.URL
		}
	}
	if problem != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = append(p.problems, problem)
	}
}

func (p *tab) do(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of an expression of the page.
func eval[T any](p *tab, expression string) (v T) {
	p.t.Helper()
	p.do(chromedp.Evaluate(expression, &v, func(r *runtime.EvaluateParams) *runtime.EvaluateParams { return r.WithAwaitPromise(true) }))
	return v
}

// wait waits until an expression is true.
func (p *tab) wait(expression string) {
	p.t.Helper()
	end := time.Now().Add(patience)
	for !eval[bool](p, "!!("+expression+")") {
		if time.Now().After(end) {
			p.t.Fatalf("after %v this is not so: %s; the page says %s", patience, expression, eval[string](p, "document.body.innerText"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("document.querySelector(%q)", selector))
	eval[bool](p, fmt.Sprintf("document.querySelector(%q).dispatchEvent(new MouseEvent('click', {bubbles: true}))", selector))
}

func (p *tab) text(selector string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
}

// theme has the page be light or dark.
func (p *tab) theme(name string) {
	p.t.Helper()
	p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
}

// axe fails the test for each violation of axe-core's rules.
func (p *tab) axe(where string) {
	p.t.Helper()
	files, err := filepath.Glob("../../bin/axe/axe-*.js")
	if err != nil || len(files) == 0 {
		p.t.Fatalf("axe-core is not there (%v): run tools/axe/build", err)
	}
	rules, err := os.ReadFile(files[0])
	if err != nil {
		p.t.Fatal(err)
	}
	p.do(chromedp.Evaluate(string(rules)+"\n;0", nil))
	found := eval[[]struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}](p, `axe.run(document).then((r) => r.violations.map((v) => ({ID: v.id, Help: v.help, Nodes: v.nodes.map((n) => ({HTML: n.html, FailureSummary: n.failureSummary}))})))`)
	for _, v := range found {
		p.t.Errorf("%s: axe-core's rule %s (%s) is violated %d times, first by %.300s: %s", where, v.ID, v.Help, len(v.Nodes), v.Nodes[0].HTML, v.Nodes[0].FailureSummary)
	}
}

// serve serves a source, and returns the address to open.
func serve(t *testing.T, s ui.Source) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	address, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- ui.New(s).Serve(ctx, l, func(a string) { address <- a }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return <-address
}

// saved writes the page as one file, and returns its address.
func saved(t *testing.T, s ui.Saved) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "twill.html")
	var b strings.Builder
	if err := s.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
