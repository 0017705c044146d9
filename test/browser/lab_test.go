package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/lab/labtest"
)

// labName is the lab's that these tests bring up.
const labName = "uibrowser"

// programs are Twill's, built of this checkout.
type programs string

func build(t *testing.T) programs {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a lab needs root")
	}
	return programs(labtest.BinDir(t))
}

func (p programs) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(string(p), "twillctl"), args...).Output()
	if err != nil {
		t.Fatalf("twillctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// show runs twillctl ui, and returns the address that it prints.
func (p programs) show(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.CommandContext(context.Background(), filepath.Join(string(p), "twillctl"), append([]string{"ui", "--open=false"}, args...)...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("twillctl ui ended with %v", err)
		}
	})
	for s := bufio.NewScanner(out); s.Scan(); {
		if address := strings.TrimSpace(s.Text()); strings.HasPrefix(address, "http://127.0.0.1:") {
			return address
		}
	}
	t.Fatal("twillctl ui printed no address")
	return ""
}

// up brings a lab up that ends with the test.
func (p programs) up(t *testing.T) {
	t.Helper()
	down := func(ctx context.Context) {
		_ = exec.CommandContext(ctx, filepath.Join(string(p), "twillctl"), "lab", "down", "--name", labName).Run() // there may be none
	}
	down(t.Context()) // that a crashed run left
	t.Cleanup(func() { down(context.Background()) })
	p.run(t, "lab", "up", "--name", labName, "--nodes", "3", "--pods", "2", "--store", "file")
}

// pid returns the agent's of a node.
func (p programs) pid(t *testing.T, node string) int {
	t.Helper()
	var r doctor.StatusReport
	if err := json.Unmarshal([]byte(p.run(t, "status", "--lab", labName, node, "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	return r.Nodes[0].PID
}

// TestLab does what README tells a new user to do: break a route, see it, point at a packet, read why.
func TestLab(t *testing.T) {
	testall.Needs(t, "chromium")
	twill := build(t)
	twill.up(t)
	p := Open(t, twill.show(t, "--lab", labName))
	p.Wait(`document.querySelectorAll("[data-node][data-health=ok]").length === 3`)
	if got := p.Text("#health"); got != "3 nodes, all in sync" {
		t.Errorf("the page says %q of a healthy lab", got)
	}
	p.Click(`[data-pod="node1/pod1"]`)
	p.Click(`[data-pod="node2/pod1"]`)
	p.Wait(`document.querySelectorAll("[data-step]").length > 8`)
	if got := p.Text(".packet [role=status]"); !strings.HasPrefix(got, "It arrives at node2/pod1; answered after") {
		t.Errorf("the page says %q of a packet that arrives", got)
	}
	p.Axe("a walk")
	p.Shoot("walk", 1440, 720, "light")

	// Without its agent a node keeps what is broken.
	if err := syscall.Kill(twill.pid(t, "node1"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	route := strings.Fields(twill.run(t, "lab", "exec", "--name", labName, "node1", "--", "ip", "route", "show", "proto", "116"))
	twill.run(t, "lab", "exec", "--name", labName, "node1", "--", "ip", "route", "del", route[0])
	p.Wait(`document.querySelector("[data-node=node1]").dataset.health === "finding"`)
	p.Wait(`document.querySelector("[data-sync=false]")`)
	peer, _, _ := strings.Cut(strings.TrimPrefix(Eval[string](p, `document.querySelector("[data-sync=false]").dataset.link`), "node1 "), " ")
	p.Click(`[data-pod="node1/pod1"]`)
	p.Click(fmt.Sprintf(`[data-pod="%s/pod1"]`, peer))
	p.Wait(`document.querySelector("[data-lost]") && document.querySelector("[data-fix]")`)
	if got := p.Text(".packet [role=status]"); !strings.HasPrefix(got, "It does not arrive at "+peer+"/pod1") {
		t.Errorf("the page says %q of a packet that is lost", got)
	}
	if got := p.Text("section.packet"); !strings.Contains(got, "route") {
		t.Errorf("the page does not name the route: %q", got)
	}
	p.Axe("a lost packet")
	p.Shoot("lost", 1440, 860, "light")
	p.Shoot("lost-dark", 1440, 860, "dark")
	p.Shoot("phone", 390, 844, "light")

	twill.run(t, "lab", "up", "--name", labName, "--nodes", "3", "--pods", "2", "--store", "file") // it starts the agent again
	p.Wait(`document.querySelectorAll("[data-node][data-health=ok], [data-node][data-health=repaired]").length === 3`)
	Eval[bool](p, `(location.hash = "time", true)`)
	p.Wait(`document.querySelectorAll(".events li").length > 6`)
	p.Wait(`document.querySelector(".events .finding")`)
	p.Axe("time")
	p.Shoot("time", 1440, 720, "light")

	Eval[bool](p, `(location.hash = "classroom", true)`)
	p.Wait(`document.querySelector("[data-fault=route-deleted]")`)
	p.Axe("classroom")
	p.Click(`[data-fault="route-deleted"]`)
	p.Wait(`/^healed in [0-9.]+ ms$/.test(document.getElementById("injury").textContent)`)
	p.lesson("arp", "", "classroom", "light")
	p.lesson("manual-vxlan", "", "lesson-overlay", "dark")
	p.lesson("article-vxlan", "The eight steps, with the entry that decides at each.", "lesson-walk", "light")
}

// lesson goes through three steps of a lesson, or to a section and a step further, takes a picture, and stops it.
func (p *Tab) lesson(name, section, picture, scheme string) {
	p.t.Helper()
	p.Click(fmt.Sprintf(`[data-script=%q]`, name))
	const waits = `!document.getElementById("next").disabled`
	if section != "" {
		p.Wait(waits)
		Eval[bool](p, fmt.Sprintf(`(() => { const j = document.getElementById("jump"); j.value = %q; return j.dispatchEvent(new Event("change")); })()`, section))
		p.Wait(fmt.Sprintf(`[...document.querySelectorAll(".log .prose")].some((e) => e.textContent === %q) && `, section) + waits)
		p.Click("#next")
		p.Wait(`document.querySelector(".log img.picture") && document.querySelectorAll(".check.held").length > 3`)
	}
	for range 3 {
		if section == "" {
			p.Wait(waits)
			p.Click("#next")
		}
	}
	p.Wait(`document.querySelectorAll(".log .run").length >= 3 && document.querySelector(".lesson svg.map .node.touched")`)
	p.Axe("the lesson " + name)
	p.Shoot(picture, 1440, 860, scheme)
	Eval[bool](p, `([...document.querySelectorAll(".lessons button")].find((b) => b.textContent === "Stop").click(), true)`)
	p.Wait(fmt.Sprintf(`/^stopped at step [0-9]+$/.test(document.querySelector(".lessons [role=status]").textContent) || document.querySelector(".lessons [role=status]").textContent === "%s: everything held."`, name))
}
