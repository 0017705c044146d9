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
	p := Open(t, serve(t, newFake(3)))
	if got := Eval[[]string](p, `[...document.querySelectorAll("[data-node]")].map((e) => e.dataset.node + " " + e.dataset.health)`); !slices.Equal(got, []string{"node1 finding", "node2 ok", "node3 ok", "node9000 unreachable"}) {
		t.Errorf("the map has %q", got)
	}
	if got := Eval[[]string](p, `[...document.querySelectorAll("[data-link]")].map((e) => e.dataset.link + " " + e.dataset.sync)`); !slices.Equal(got, []string{"node1 node2 true", "node1 node3 false", "node2 node3 true"}) {
		t.Errorf("the links are %q", got)
	}
	for _, name := range hostile {
		if got := Eval[int](p, fmt.Sprintf(`document.querySelectorAll("[data-pod=" + CSS.escape(%s) + "]").length`, asJSON(t, "shop/"+name))); got != 1 {
			t.Errorf("the pod %q is there %d times", name, got)
		}
	}
	if got := p.Text("#health"); !strings.HasPrefix(got, "node1: the route to a peer's pods is gone, and 1 more; 4 nodes") {
		t.Errorf("the page says %q", got)
	}
	p.Click(`[data-node="node1"] .head`)
	p.Wait(`document.querySelector(".details h2")?.textContent === "node1"`)
	p.Click(`.doctor button`)
	p.Wait(`document.querySelector("[data-finding]")`)
	for _, theme := range []string{"light", "dark"} {
		p.Theme(theme)
		for _, view := range []string{"map", "matrix", "time"} {
			p.Click(fmt.Sprintf(`nav [data-view=%q]`, view))
			Eval[bool](p, fmt.Sprintf(`(location.hash = %q, true)`, view))
			p.Wait(fmt.Sprintf(`document.querySelector("main").dataset.view === %q`, view))
			if view == "time" {
				p.Wait(`document.querySelectorAll(".events li").length >= 4`)
			}
			p.Axe(view + ", " + theme)
		}
	}
	if Eval[bool](p, "'broken' in window") || Eval[int](p, `document.querySelectorAll("img, iframe, #app script").length`) > 0 {
		t.Error("a name of the cluster became markup")
	}
	if strings.Contains(Eval[string](p, "location.href"), "#") && len(Eval[string](p, "location.hash")) > 20 {
		t.Error("the token stays in the address")
	}
}

// TestDrops: packets that a node's devices drop are counted from when the page was opened.
func TestDrops(t *testing.T) {
	f := newFake(3)
	p := Open(t, serve(t, f))
	p.Click(`[data-node="node2"] .head`)
	p.Wait(`document.querySelector(".details")?.textContent.includes("flannel.1 8; 0 since this page was opened")`)
	if got := p.Text(`[data-node="node2"]`); strings.Contains(got, "drop") {
		t.Errorf("the map says %q of packets that were dropped before", got)
	}
	f.drops.Add(3)
	p.Wait(`document.querySelector("[data-node=node2]").textContent.includes("2 peers, 3 drops")`)
	p.Wait(`document.querySelector(".details").textContent.includes("flannel.1 11; 3 since this page was opened")`)
}

// TestLive watches real packets, and shows where each was seen and dropped.
func TestLive(t *testing.T) {
	p := Open(t, serve(t, newFake(3)))
	p.Click("#live")
	p.Do(chromedp.SetValue("#from", "shop/web-1"), chromedp.SetValue("#to", "shop/web-3"))
	Eval[bool](p, `(document.querySelector("form.ends").requestSubmit(), true)`)
	p.Wait(`document.querySelectorAll("[data-step]").length === 3`)
	if got := p.Text(".packet [role=status]"); got != "Real packets, 3.0 seconds: ✗ 15 of 15 were seen last on node1, coming in through cni0" {
		t.Errorf("the page says %q", got)
	}
	if got := p.Text("[data-step='2']"); !strings.Contains(got, "node1 drops 15 packets – lost here") || !strings.Contains(got, "NETFILTER_DROP in nf_hook_slow on cni0") {
		t.Errorf("the drop is %q", got)
	}
	if !Eval[bool](p, `document.querySelector("#live").checked`) {
		t.Error("the choice is forgotten")
	}
	p.Axe("real packets")
}

// TestKeyboard follows a packet without a mouse, one that arrives and one that is lost.
func TestKeyboard(t *testing.T) {
	p := Open(t, serve(t, newFake(3)))
	press := func(keys ...string) {
		for _, k := range keys {
			p.Do(chromedp.KeyEvent(k))
		}
	}
	tabTo := func(want string) {
		t.Helper()
		for range 60 {
			press(kb.Tab)
			if Eval[bool](p, fmt.Sprintf(`document.activeElement.matches(%q)`, want)) {
				return
			}
		}
		t.Fatalf("the tab key does not lead to %s", want)
	}
	tabTo(`[data-pod="shop/web-1"]`)
	press(kb.Enter)
	p.Wait(`document.querySelector("[data-pod='shop/web-1'].from")`)
	tabTo(`[data-pod="shop/web-2"]`)
	press(" ")
	p.Wait(`document.querySelectorAll("[data-step]").length === 4`)
	if got := p.Text(".packet [role=status]"); !strings.Contains(got, "arrives at shop/web-2") {
		t.Errorf("the page says %q", got)
	}
	tabTo(`[data-next]`)
	press(kb.Enter, kb.ArrowRight)
	p.Wait(`document.querySelector("[data-step='2'].now")`)
	press(kb.ArrowLeft)
	p.Wait(`document.querySelector("[data-step='1'].now")`)
	p.Do(chromedp.SetValue("#from", "shop/web-1"), chromedp.SetValue("#to", "shop/web-3"))
	Eval[bool](p, `(document.querySelector("form.ends").requestSubmit(), true)`)
	p.Wait(`document.querySelector("[data-lost]")`)
	if got := p.Text("[data-fix]"); got != finding.Command {
		t.Errorf("the command that mends it is %q, want %q", got, finding.Command)
	}
	if n := Eval[int](p, `document.querySelectorAll(".way.lost .cross").length`); n != 1 {
		t.Errorf("the place where it is lost is marked %d times", n)
	}
	p.Axe("a lost packet")
}

// TestWidths: from phones to wide screens nothing is cut off.
func TestWidths(t *testing.T) {
	p := Open(t, serve(t, newFake(3)))
	p.Click(`[data-pod="shop/web-1"]`)
	p.Click(`[data-pod="shop/web-2"]`)
	p.Click(`[data-node="node1"] .head`)
	for _, width := range []int64{320, 768, 1440, 2560} {
		p.Do(emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500))
		for _, view := range []string{"map", "matrix", "time"} {
			Eval[bool](p, fmt.Sprintf(`(location.hash = %q, true)`, view))
			p.Wait(fmt.Sprintf(`document.querySelector("main").dataset.view === %q`, view))
			if got := Eval[int64](p, "document.documentElement.scrollWidth"); got > width {
				t.Errorf("at %d px the view %s is %d px wide", width, view, got)
			}
		}
	}
	p.Axe("wide")
}

// TestThousand shows a thousand nodes, and finds one.
func TestThousand(t *testing.T) {
	p := Open(t, serve(t, newFake(1000)))
	if n := Eval[int](p, `document.querySelectorAll("[data-node]").length`); n != 1001 {
		t.Errorf("%d nodes are shown, want 1,001", n)
	}
	t.Logf("first paint after %.0f ms, all nodes after %.0f ms", Eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`), Eval[float64](p, "performance.now()"))
	p.Do(chromedp.SendKeys("#search", "node777"))
	p.Wait(`document.querySelectorAll("[data-node]:not(.faint)").length === 1`)
	p.Click(`[data-node="node777"]`)
	p.Wait(`document.querySelector(".details h2")?.textContent === "node777"`)
	p.Axe("a thousand nodes")
	Eval[bool](p, `(location.hash = "matrix", true)`)
	p.Wait(`document.querySelector("canvas")`)
	if got := p.Text(".matrix > p"); !strings.Contains(got, "of 1001000 not in sync") {
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
	p := Open(t, address)
	if n := Eval[int](p, `document.querySelectorAll("[data-step]").length`); n != 4 {
		t.Errorf("the saved walk has %d steps, want 4", n)
	}
	p.Click(`[data-node="node1"] .head`)
	p.Wait(`document.querySelector("[data-finding]")`)
	if got := Eval[[]string](p, `performance.getEntriesByType("resource").map((e) => e.name)`); len(got) > 0 {
		t.Errorf("the file loads %q", got)
	}
	p.Axe("a saved file")
}

// TestReconnect: a page whose server went says so, and goes on when it is back.
func TestReconnect(t *testing.T) {
	p := Open(t, serve(t, newFake(3)))
	u, err := url.Parse(Eval[string](p, "location.href"))
	if err != nil {
		t.Fatal(err)
	}
	if u.Fragment != "" {
		t.Errorf("the address still has %q", u.Fragment)
	}
	p.Do(chromedp.Reload())
	p.Wait(`document.body.dataset.ready === "true"`) // the token was kept
}
