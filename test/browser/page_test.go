package browser

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/twill-net/twill/ui"
)

// TestMap: nodes, tunnels and pods are there with their health; nobody's name is markup; axe-core finds nothing, in any view
// and theme.
func TestMap(t *testing.T) {
	p := open(t, serve(t, newFake(3)))
	if got := eval[[]string](p, `[...document.querySelectorAll("[data-node]")].map((e) => e.dataset.node + " " + e.dataset.health)`); !slices.Equal(got, []string{"node1 finding", "node2 ok", "node3 ok", "node9000 unreachable"}) {
		t.Errorf("the map has %q", got)
	}
	if got := eval[[]string](p, `[...document.querySelectorAll("[data-link]")].map((e) => e.dataset.link + " " + e.dataset.sync)`); !slices.Equal(got, []string{"node1 node2 true", "node1 node3 false", "node2 node3 true"}) {
		t.Errorf("the links are %q", got)
	}
	for _, name := range hostile {
		if got := eval[int](p, fmt.Sprintf(`document.querySelectorAll("[data-pod=" + CSS.escape(%s) + "]").length`, asJSON(t, "shop/"+name))); got != 1 {
			t.Errorf("the pod %q is there %d times", name, got)
		}
	}
	if got := p.text("#health"); !strings.HasPrefix(got, "node1: finding (route-missing), and 1 more; 4 nodes") {
		t.Errorf("the page says %q", got)
	}
	p.click(`[data-node="node1"] .head`)
	p.wait(`document.querySelector(".details h2")?.textContent === "node1"`)
	p.click(`.doctor button`)
	p.wait(`document.querySelector("[data-finding]")`)
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		for _, view := range []string{"map", "matrix", "time"} {
			p.click(fmt.Sprintf(`nav [data-view=%q]`, view))
			eval[bool](p, fmt.Sprintf(`(location.hash = %q, true)`, view))
			p.wait(fmt.Sprintf(`document.querySelector("main").dataset.view === %q`, view))
			if view == "time" {
				p.wait(`document.querySelectorAll(".events li").length >= 4`)
			}
			p.axe(view + ", " + theme)
		}
	}
	if eval[bool](p, "'broken' in window") || eval[int](p, `document.querySelectorAll("img, iframe, #app script").length`) > 0 {
		t.Error("a name of the cluster became markup")
	}
	if strings.Contains(eval[string](p, "location.href"), "#") && len(eval[string](p, "location.hash")) > 20 {
		t.Error("the token stays in the address")
	}
}

// TestKeyboard follows a packet without a mouse, one that arrives and one that is lost.
func TestKeyboard(t *testing.T) {
	p := open(t, serve(t, newFake(3)))
	press := func(keys ...string) {
		for _, k := range keys {
			p.do(chromedp.KeyEvent(k))
		}
	}
	tabTo := func(want string) {
		t.Helper()
		for range 60 {
			press(kb.Tab)
			if eval[bool](p, fmt.Sprintf(`document.activeElement.matches(%q)`, want)) {
				return
			}
		}
		t.Fatalf("the tab key does not lead to %s", want)
	}
	tabTo(`[data-pod="shop/web-1"]`)
	press(kb.Enter)
	p.wait(`document.querySelector("[data-pod='shop/web-1'].from")`)
	tabTo(`[data-pod="shop/web-2"]`)
	press(" ")
	p.wait(`document.querySelectorAll("[data-step]").length === 4`)
	if got := p.text(".packet [role=status]"); !strings.Contains(got, "arrives at shop/web-2") {
		t.Errorf("the page says %q", got)
	}
	tabTo(`[data-next]`)
	press(kb.Enter, kb.ArrowRight)
	p.wait(`document.querySelector("[data-step='2'].now")`)
	press(kb.ArrowLeft)
	p.wait(`document.querySelector("[data-step='1'].now")`)
	p.do(chromedp.SetValue("#from", "shop/web-1"), chromedp.SetValue("#to", "shop/web-3"))
	eval[bool](p, `(document.querySelector("form.ends").requestSubmit(), true)`)
	p.wait(`document.querySelector("[data-lost]")`)
	if got := p.text("[data-fix]"); got != finding.Fix {
		t.Errorf("the command that mends it is %q, want %q", got, finding.Fix)
	}
	if n := eval[int](p, `document.querySelectorAll(".way.lost .cross").length`); n != 1 {
		t.Errorf("the place where it is lost is marked %d times", n)
	}
	p.axe("a lost packet")
}

// TestWidths: from phones to wide screens nothing is cut off.
func TestWidths(t *testing.T) {
	p := open(t, serve(t, newFake(3)))
	p.click(`[data-pod="shop/web-1"]`)
	p.click(`[data-pod="shop/web-2"]`)
	p.click(`[data-node="node1"] .head`)
	for _, width := range []int64{320, 768, 1440, 2560} {
		p.do(emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500))
		for _, view := range []string{"map", "matrix", "time"} {
			eval[bool](p, fmt.Sprintf(`(location.hash = %q, true)`, view))
			p.wait(fmt.Sprintf(`document.querySelector("main").dataset.view === %q`, view))
			if got := eval[int64](p, "document.documentElement.scrollWidth"); got > width {
				t.Errorf("at %d px the view %s is %d px wide", width, view, got)
			}
		}
	}
	p.axe("wide")
}

// TestThousand shows a thousand nodes, and finds one.
func TestThousand(t *testing.T) {
	p := open(t, serve(t, newFake(1000)))
	if n := eval[int](p, `document.querySelectorAll("[data-node]").length`); n != 1001 {
		t.Errorf("%d nodes are shown, want 1,001", n)
	}
	t.Logf("first paint after %.0f ms, all nodes after %.0f ms", eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`), eval[float64](p, "performance.now()"))
	p.do(chromedp.SendKeys("#search", "node777"))
	p.wait(`document.querySelectorAll("[data-node]:not(.faint)").length === 1`)
	p.click(`[data-node="node777"]`)
	p.wait(`document.querySelector(".details h2")?.textContent === "node777"`)
	p.axe("a thousand nodes")
	eval[bool](p, `(location.hash = "matrix", true)`)
	p.wait(`document.querySelector("canvas")`)
	if got := p.text(".matrix > p"); !strings.Contains(got, "of 1001000 not in sync") {
		t.Errorf("the matrix says %q", got)
	}
}

// TestSavedFile opens a page in one file, from the disk: it asks nobody.
func TestSavedFile(t *testing.T) {
	f := newFake(3)
	s, err := ui.Save(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	way, err := f.Walk(t.Context(), "shop/web-1", "shop/web-2", false)
	if err != nil {
		t.Fatal(err)
	}
	s.Walk = &way
	address := saved(t, s)
	p := open(t, address)
	if n := eval[int](p, `document.querySelectorAll("[data-step]").length`); n != 4 {
		t.Errorf("the saved walk has %d steps, want 4", n)
	}
	p.click(`[data-node="node1"] .head`)
	p.wait(`document.querySelector("[data-finding]")`)
	if got := eval[[]string](p, `performance.getEntriesByType("resource").map((e) => e.name)`); len(got) > 0 {
		t.Errorf("the file loads %q", got)
	}
	p.axe("a saved file")
}

// TestReconnect: a page whose server went says so, and goes on when it is back.
func TestReconnect(t *testing.T) {
	p := open(t, serve(t, newFake(3)))
	u, err := url.Parse(eval[string](p, "location.href"))
	if err != nil {
		t.Fatal(err)
	}
	if u.Fragment != "" {
		t.Errorf("the address still has %q", u.Fragment)
	}
	p.do(chromedp.Reload())
	p.wait(`document.body.dataset.ready === "true"`) // the token was kept
}
