// Package browser opens the page of twillctl ui in Debian's chromium. Its tests are about labs and what no lab can show:
// what the page shows, how it is used without a mouse, what axe-core says of it, and that it asks nobody but its own
// server.
package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
)

// Tab is one of a browser of its own.
type Tab struct {
	t        *testing.T
	ctx      context.Context
	mu       sync.Mutex
	problems []string
}

// Open opens an address in a new browser. The test fails if the page writes an error to the console, or asks another
// server than its own.
func Open(t *testing.T, address string) *Tab {
	t.Helper()
	testall.Needs(t, "chromium")
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-gpu", true),
		chromedp.WSURLReadTimeout(testwait.Limit))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, 10*testwait.Limit)
	t.Cleanup(stop)
	p := &Tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, p.watch)
	p.Do(network.Enable(), log.Enable(), chromedp.EmulateViewport(1440, 900), chromedp.Navigate(address))
	p.Wait(`document.body.dataset.ready === "true"`)
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
func (p *Tab) watch(event any) {
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

// Do does something in the page, and fails the test if that fails.
func (p *Tab) Do(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// Eval returns the value of an expression of the page.
func Eval[T any](p *Tab, expression string) (v T) {
	p.t.Helper()
	p.Do(chromedp.Evaluate(expression, &v, func(r *runtime.EvaluateParams) *runtime.EvaluateParams { return r.WithAwaitPromise(true) }))
	return v
}

// Wait waits until an expression is true.
func (p *Tab) Wait(expression string) {
	p.t.Helper()
	testwait.Nil(p.t, expression, func() error {
		if Eval[bool](p, "!!("+expression+")") {
			return nil
		}
		return fmt.Errorf("the page says %s", Eval[string](p, "document.body.innerText"))
	})
}

// Click clicks on the first element that a selector finds, once there is one.
func (p *Tab) Click(selector string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf("document.querySelector(%q)", selector))
	Eval[bool](p, fmt.Sprintf("document.querySelector(%q).dispatchEvent(new MouseEvent('click', {bubbles: true}))", selector))
}

// Text returns the text of the first element that a selector finds, empty if there is none.
func (p *Tab) Text(selector string) string {
	p.t.Helper()
	return Eval[string](p, fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
}

// Theme makes the page light or dark.
func (p *Tab) Theme(name string) {
	p.t.Helper()
	p.Do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
}

// Axe fails the test for each violation of axe-core's rules.
func (p *Tab) Axe(where string) {
	p.t.Helper()
	rules, err := rules()
	if err != nil {
		p.t.Fatal(err)
	}
	p.Do(chromedp.Evaluate(string(rules)+"\n;0", nil))
	found := Eval[[]struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}](p, `axe.run(document).then((r) => r.violations.map((v) => ({ID: v.id, Help: v.help, Nodes: v.nodes.map((n) => ({HTML: n.html, FailureSummary: n.failureSummary}))})))`)
	for _, v := range found {
		p.t.Errorf("%s: axe-core's rule %s (%s) is violated %d times, first by %.300s: %s", where, v.ID, v.Help, len(v.Nodes), v.Nodes[0].HTML, v.Nodes[0].FailureSummary)
	}
}

// Shoot writes a picture of the page if TWILL_SCREENSHOTS names a folder: make screenshots.
func (p *Tab) Shoot(name string, width, height int64, theme string) {
	p.t.Helper()
	dir := os.Getenv("TWILL_SCREENSHOTS")
	if dir == "" {
		return
	}
	p.Theme(theme)
	var png []byte
	p.Do(emulation.SetDeviceMetricsOverride(width, height, 1, width < 500), chromedp.Sleep(500*time.Millisecond),
		chromedp.ActionFunc(func(ctx context.Context) (err error) {
			png, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).Do(ctx)
			return err
		}))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		p.t.Fatal(err)
	}
	p.Do(emulation.SetDeviceMetricsOverride(1440, 900, 1, false))
	p.Theme("light")
}

// rules reads axe-core's, from the checkout in which the tests run.
func rules() ([]byte, error) {
	for up := ".."; ; up += "/.." {
		files, err := filepath.Glob(up + "/bin/axe/axe-*.js")
		switch {
		case err != nil:
			return nil, err
		case len(files) > 0:
			return os.ReadFile(files[0])
		case len(up) > len("../../../../.."):
			return nil, errors.New("axe-core is not there: run tools/axe/build")
		}
	}
}
