//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/test/browser"
	"github.com/twill-net/twill/test/cluster"
)

// show runs "kubectl twill ui", and returns the address that it prints.
func (p plugin) show(t *testing.T) string {
	t.Helper()
	cmd := p.command(context.Background(), t, "ui", "--open=false")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kubectl twill ui ended with %v", err)
		}
	})
	for s := bufio.NewScanner(out); s.Scan(); {
		if address := strings.TrimSpace(s.Text()); strings.HasPrefix(address, "http://127.0.0.1:") {
			return address
		}
	}
	t.Fatal("kubectl twill ui printed no address")
	return ""
}

// TestUI opens a real cluster in a browser: its map, a packet's way, a rule that drops it, real packets, and what agents
// repaired.
func TestUI(t *testing.T) {
	pods := probes(t)
	matrix(t)
	p := newPlugin(t)
	page := browser.Open(t, p.show(t))
	healthy := fmt.Sprintf(`document.querySelectorAll("[data-node][data-health=ok], [data-node][data-health=repaired]").length === %d`, spec.Nodes)
	page.Wait(healthy)
	for _, pod := range pods {
		page.Wait(fmt.Sprintf(`document.querySelector('[data-node="%s"] [data-pod="default/%s"]')`, pod.Node, pod.Name))
	}
	page.Axe("a cluster")
	follow := func(from, to string) {
		t.Helper()
		browser.Eval[bool](page, fmt.Sprintf(`(document.getElementById("from").value = %q, document.getElementById("to").value = %q, document.querySelector("form.ends").requestSubmit(), true)`, from, to))
		page.Wait(`document.querySelector("#go").disabled`)
		page.Wait(`!document.querySelector("#go").disabled`)
	}
	says := func(want string) {
		t.Helper()
		if got := page.Text(".packet [role=status]"); !strings.Contains(got, want) {
			t.Errorf("the page says %q, want %q in it; the panel is %q", got, want, page.Text("section.packet"))
		}
	}
	src, dst := "default/"+pods[0].Name, "default/"+pods[1].Name
	follow(src, dst)
	says("Nothing stops it, nor its answer.")
	if n := browser.Eval[int](page, `document.querySelectorAll("[data-step]").length`); n < 5 {
		t.Errorf("the way has %d steps", n)
	}
	follow(src, "service/default/kubernetes")
	says("Nothing stops it, nor its answer.")

	rule := "-t raw %s PREROUTING -s " + pods[0].Addrs[0].String() + " -d " + pods[1].Addrs[0].String() + " -j DROP"
	drop := func(ctx context.Context, verb string) {
		_, err := spec.Host(pods[1].Node).Exec(ctx, strings.Fields("iptables "+fmt.Sprintf(rule, verb))...)
		must(t, err)
	}
	drop(t.Context(), "-A")
	follow(src, dst)
	if got := page.Text("[data-fix]"); !strings.Contains(got, "PREROUTING") || !strings.Contains(got, pods[0].Addrs[0].String()) {
		t.Errorf("the command that mends it is %q, want one about %q", got, fmt.Sprintf(rule, "-D"))
	}
	page.Wait(`document.querySelector(".way.lost .cross")`)
	page.Axe("a lost packet of a cluster")
	page.Shoot("cluster-lost", 1440, 860, "light")
	drop(t.Context(), "-D")
	pageLive(t, page, follow, pods)

	_, err := spec.Host(pods[0].Node).Exec(t.Context(), "ip", "route", "flush", "proto", "116")
	must(t, err)
	page.Wait(fmt.Sprintf(`document.querySelector('[data-node="%s"]').dataset.health === "repaired"`, pods[0].Node))
	page.Wait(healthy)
	browser.Eval[bool](page, `(location.hash = "time", true)`)
	page.Wait(fmt.Sprintf(`[...document.querySelectorAll(".events .repair")].some((e) => e.textContent.includes(%q))`, pods[0].Node))
	page.Axe("a cluster's last hour")
	p.want(t, 0, []string{"the agent started, with the backend vxlan", "repair"}, "history", pods[0].Node)
	file := filepath.Join(t.TempDir(), "cluster.html")
	p.want(t, 0, []string{fmt.Sprintf("%d nodes", spec.Nodes)}, "report", "--html", "--file="+file)
	browser.Open(t, "file://"+file).Wait(fmt.Sprintf(`document.querySelectorAll("[data-node]").length === %d`, spec.Nodes))
}

// pageLive watches real packets of two pods.
func pageLive(t *testing.T, page *browser.Tab, follow func(from, to string), pods []cluster.Pod) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		for ctx.Err() == nil {
			_, _ = spec.Probe(ctx, pods[0].Name, pods[1].Targets()...)
		}
	}()
	page.Click("#live")
	follow("default/"+pods[0].Name, "default/"+pods[1].Name)
	stop()
	<-asking
	if got := page.Text(".packet [role=status]"); !strings.Contains(got, "Real packets, ") || !strings.Contains(got, "✓") {
		t.Errorf("the page says %q of real packets", got)
	}
	if n := browser.Eval[int](page, `document.querySelectorAll("[data-step]").length`); n < 3 {
		t.Errorf("real packets were seen at %d places", n)
	}
	page.Shoot("cluster-live", 1440, 860, "light")
	page.Click("#live")
}
