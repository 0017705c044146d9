//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

// The cluster that engines are compared in, beside the pods of startGuard: policies, and pods of a node that does not
// run.
const (
	enginePolicies = 100
	enginePods     = 500
	engineRounds   = 15
	enginePause    = 3 * time.Second // longer than an engine needs
)

// BenchmarkPolicyEngines compares Twill with kube-router, one after the other in one cluster: how long after the write
// of a policy its packets stop, and flow again after it is deleted; the processor time that a pod of another node costs
// on all nodes, from its creation to its deletion; and how many TCP connections a second a guarded pod takes from a pod
// of its own node and of another one.
//
//	make bench-engines
func BenchmarkPolicyEngines(b *testing.B) {
	for _, engine := range []struct {
		name, program string
		start         func(testing.TB) guard
	}{
		{"twill", "twilld", func(t testing.TB) guard { enforce(t); return startPods(t) }},
		{"kube-router", "kube-router", startGuard},
	} {
		b.Run(engine.name, func(b *testing.B) {
			c := comparison{b, newAPI(b), engine.program, engine.start(b)}
			c.fill()
			for range b.N {
				c.latency()
				c.churn()
				c.connects()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// comparison is one engine at work.
type comparison struct {
	*testing.B
	api
	program string
	guard
}

// api is the API server, without kubectl's time.
type api struct {
	http *http.Client
	url  string
}

func newAPI(b *testing.B) api {
	b.Helper()
	cfg, err := kubeclient.Server{Kubeconfig: spec.Kubeconfig()}.Config()
	must(b, err)
	c, err := kubeclient.New(cfg)
	must(b, err)
	return api{c.HTTP, cfg.Host}
}

// call makes a call with a body in JSON, if there is one.
func (a api) call(ctx context.Context, method, path, kind string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return nil
}

type object = map[string]any

const (
	policiesPath = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
	podsPath     = "/api/v1/namespaces/default/pods"
	asJSON       = "application/json"
)

func (c comparison) create(path string, o object) {
	c.Helper()
	must(c, c.call(c.Context(), http.MethodPost, path, asJSON, o))
}

func (c comparison) delete(path string) {
	c.Helper()
	must(c, c.call(context.Background(), http.MethodDelete, path, asJSON, object{"gracePeriodSeconds": 0}))
}

// policy is a policy that selects the pods of an application, and lets nobody in but other applications' pods.
func (c comparison) policy(name, app string, from ...object) {
	c.Helper()
	c.create(policiesPath, object{"metadata": object{"name": name}, "spec": object{
		"podSelector": object{"matchLabels": object{"app": app}}, "policyTypes": []string{"Ingress"},
		"ingress": []object{{"from": from, "ports": []object{{"port": 8080}}}}}})
}

func selects(app string) object {
	return object{"podSelector": object{"matchLabels": object{"app": app}}}
}

// fill adds policies and pods of a node that does not run.
func (c comparison) fill() {
	c.Helper()
	c.create("/api/v1/nodes", object{"metadata": object{"name": "ghost"}})
	c.Cleanup(func() { c.delete("/api/v1/nodes/ghost") })
	for i := range enginePolicies {
		name := fmt.Sprint("policy", i)
		c.policy(name, fmt.Sprint("app", i%20), selects(fmt.Sprint("app", (i+1)%20)), selects("friend1"))
		c.Cleanup(func() { c.delete(policiesPath + "/" + name) })
	}
	for i := range enginePods {
		name := fmt.Sprint("ghost", i)
		c.pod(name, i)
		c.Cleanup(func() { c.delete(podsPath + "/" + name) })
	}
}

// pod makes a pod that has an address, on the node that does not run.
func (c comparison) pod(name string, i int) {
	c.Helper()
	c.create(podsPath, object{"metadata": object{"name": name, "labels": object{"app": fmt.Sprint("app", i%20)}}, "spec": object{
		"nodeName": "ghost", "containers": []object{{"name": "none", "image": cluster.PodImage}}}})
	addr := fmt.Sprintf("10.251.%d.%d", i/250, 1+i%250)
	must(c, c.call(c.Context(), http.MethodPatch, podsPath+"/"+name+"/status", "application/merge-patch+json", object{
		"status": object{"phase": "Running", "podIP": addr, "podIPs": []object{{"ip": addr}}}}))
}

// latency measures from the write of a policy that isolates a friend to the first packet of a stranger that is lost, and
// from its deletion to the first one that passes.
func (c comparison) latency() {
	c.Helper()
	from, to := c.strangers[1], c.friends[0] // on two nodes
	w := c.watch(from.Name, to)
	defer w.stop()
	w.await("open", time.Time{})
	var denied, allowed []time.Duration
	for range engineRounds {
		began := time.Now()
		c.create(policiesPath, object{"metadata": object{"name": "deny"}, "spec": object{
			"podSelector": object{"matchLabels": object{"app": "friend1"}}, "policyTypes": []string{"Ingress"}}})
		denied = append(denied, w.await("shut", began).Sub(began))
		testwait.Pause(c, enginePause, "the engine comes to rest")
		began = time.Now()
		c.delete(policiesPath + "/deny")
		allowed = append(allowed, w.await("open", began).Sub(began))
		testwait.Pause(c, enginePause, "the engine comes to rest")
	}
	for name, all := range map[string][]time.Duration{"deny": denied, "allow": allowed} {
		slices.Sort(all)
		c.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-p50-ms")
		c.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, name+"-max-ms")
	}
}

// watched is a pod that asks another one all the time.
type watched struct {
	*testing.B
	lines chan string
	stop  func()
}

func (c comparison) watch(from string, to cluster.Pod) watched {
	c.Helper()
	kubectl, err := controlplane.FindBinary("kubectl")
	must(c, err)
	cmd := exec.CommandContext(c.Context(), kubectl, "--kubeconfig="+spec.Kubeconfig(), "exec", from, "--container=probe", "--",
		"/pod", "watch", to.Addrs[0].String()+":8080")
	out, err := cmd.StdoutPipe()
	must(c, err)
	must(c, cmd.Start())
	w := watched{c.B, make(chan string, 1000), sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})}
	c.Cleanup(w.stop)
	go func() {
		defer close(w.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
	}()
	return w
}

// await waits for a change after a moment, and returns since when it is. Others before it are the engine's own.
func (w watched) await(word string, after time.Time) time.Time {
	w.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case line := <-w.lines:
			got, text, _ := strings.Cut(line, " ")
			nanos, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				w.Fatalf("%q: want a word and a time", line)
			}
			if at := time.Unix(0, nanos); got == word && at.After(after) {
				return at
			}
		case <-late:
			w.Fatalf("it is not %s within a minute", word)
		}
	}
}

// churn measures the processor time of the engine, and of the programs that it ran, for pods that come and go.
func (c comparison) churn() {
	c.Helper()
	const pods = 200
	testwait.Pause(c, 2*enginePause, "the engine comes to rest")
	idle := c.used(2 * enginePause)
	began := time.Now()
	busy := c.used(0)
	for i := range pods {
		name := fmt.Sprint("churn", i)
		c.pod(name, enginePods+i)
		c.delete(podsPath + "/" + name)
	}
	testwait.Pause(c, 2*enginePause, "what the engine does after that is for them, too")
	busy = c.used(0) - busy - time.Duration(float64(idle)*float64(time.Since(began))/float64(2*enginePause))
	c.ReportMetric(float64(busy.Microseconds())/pods/1000, "cpu-ms/pod")
}

// used returns the processor time that the engine's processes used: in a while from now on, or until now.
func (c comparison) used(within time.Duration) time.Duration {
	c.Helper()
	const tick = time.Second / 100
	sum := func() (all time.Duration) {
		for n := 1; n <= spec.Nodes; n++ {
			// utime, stime, and those of children that have ended
			out := onNode(c, n, `for p in $(pgrep -x `+c.program+`); do cut -d' ' -f14-17 /proc/$p/stat; done`)
			for _, text := range strings.Fields(out) {
				ticks, err := strconv.Atoi(text)
				must(c, err)
				all += time.Duration(ticks) * tick
			}
		}
		return all
	}
	if within == 0 {
		return sum()
	}
	before := sum()
	testwait.Pause(c, within, "the processor time of it is measured")
	return sum() - before
}

// connects counts connections.
func (c comparison) connects() {
	c.Helper()
	const seconds = 3
	for i, from := range []string{"same-node", "other-node"} {
		out := ""
		for range 3 { // the best of three
			text, err := spec.Kubectl(c.Context(), "exec", c.friends[i].Name, "--container=probe", "--", "/pod", "connects",
				c.guarded.Addrs[0].String()+":8080", fmt.Sprint(seconds))
			must(c, err)
			if text = strings.TrimSpace(text); len(text) > len(out) || len(text) == len(out) && text > out {
				out = text
			}
		}
		count, err := strconv.Atoi(out)
		must(c, err)
		c.ReportMetric(float64(count)/seconds, from+"-connects/s")
	}
}
