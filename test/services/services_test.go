package services

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// client is the pod that connects.
const client = "node1/pod1"

// TestTrace asks about Services in both modes of kube-proxy. node3 has none.
func TestTrace(t *testing.T) {
	w := newWorld(t)
	for _, pod := range []string{"node1/pod2", "node2/pod1", "node3/pod1"} {
		w.serve(t, pod, ":8080")
	}
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) {
			w.proxy(t, "node1", mode)
			w.proxy(t, "node2", mode)
			t.Run("answers", w.testAnswers)
			t.Run("names", w.testNames)
			t.Run("objects", w.testObjects)
			t.Run("policies", w.testPolicies)
			t.Run("sticky", w.testSticky)
			t.Run("headless", w.testHeadless)
			t.Run("pods", w.testPods)
			t.Run("proxy", w.testProxy)
			t.Run("path", w.testPath)
			t.Run("doctor", w.testDoctor)
			t.Run("udp", w.testUDP)
			t.Run("host port", w.testHostPort)
			t.Run("machine", w.testMachine)
		})
	}
}

// wants fails the test if the trace does not name this problem, with these words.
func wants(t *testing.T, r traced, code string, words ...string) {
	t.Helper()
	all := r.problems()
	for _, p := range all {
		if p.Code != code {
			continue
		}
		text := p.Place + " | " + p.Text + " | " + p.Fix + " | " + p.Rule
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("problem %s: %s\nwant %q in it", code, text, word)
			}
		}
		if r.code != 1 {
			t.Errorf("exit code %d, want 1", r.code)
		}
		return
	}
	t.Errorf("problems %+v, want %s\n%s", all, code, r.text)
}

// answered reports whether all connections were answered.
func answered(r traced) bool {
	for _, s := range r.Services {
		if s.Sent == 0 || s.Sent != s.Answered {
			return false
		}
	}
	return len(r.Services) > 0 && r.Problem == nil
}

func has(code string) func(traced) bool {
	return func(r traced) bool {
		for _, p := range r.problems() {
			if p.Code == code {
				return true
			}
		}
		return false
	}
}

func (w *world) fine(t *testing.T, src, dst string) traced {
	t.Helper()
	r := w.settled(t, src, dst, answered)
	if !answered(r) || r.code != 0 {
		t.Fatalf("trace %s %s, exit code %d: %s", src, dst, r.code, r.text)
	}
	return r
}

func (w *world) testAnswers(t *testing.T) {
	w.service(t, "web", nil)
	w.endpoints(t, "web", httpPort, backend{pod: "node1/pod2"}, backend{pod: "node2/pod1"}, backend{pod: "node3/pod1"})
	r := w.fine(t, client, "service/shop/web:http").Services[0]
	if len(r.Endpoints) != 3 || len(r.Unread) > 0 {
		t.Fatalf("%+v", r)
	}
	for _, e := range r.Endpoints {
		last := ""
		if len(e.Seen) > 0 {
			last = e.Seen[len(e.Seen)-1]
		}
		if e.Chosen > 0 && (e.Tracked != e.Chosen || !strings.Contains(e.Rule, e.To.Addr().String()) ||
			!strings.HasPrefix(e.Rule, "node1: ") || !strings.Contains(last, "/pod")) {
			t.Errorf("%+v: want a rule that names it, conntrack's entries and the pod's sight", e)
		}
	}
}

func (w *world) testNames(t *testing.T) {
	w.service(t, "web", nil)
	w.endpoints(t, "web", httpPort, backend{pod: "node2/pod1"})
	for _, dst := range []string{"svc/shop/web", "web.shop.svc.cluster.local:80", "service/shop/web:80/tcp",
		w.clusterIP(t, "web").String() + ":80"} {
		w.fine(t, client, dst)
	}
	wants(t, w.trace(t, client, "service/shop/wob"), "no-service", "shop/wob", "the namespace shop has web")
	wants(t, w.trace(t, client, "service/web"), "no-service", "default/web", "namespace shop")
	wants(t, w.trace(t, client, "service/shop/web:8080"), "no-port", "http 80/TCP", "8080 is the pods' port")
	wants(t, w.trace(t, client, "service/shop/web:80/udp"), "no-port", "no port 80/UDP")
	wants(t, w.trace(t, client, w.clusterIP(t, "web").String()+":81"), "no-port", "shop/web", "http 80/TCP")
	wants(t, w.trace(t, client, "10.97.1.1:80"), "no-service", "10.97.1.1")
	w.service(t, "alias", object{"type": "ExternalName", "externalName": "db.example.org"})
	wants(t, w.trace(t, client, "service/shop/alias"), "external-name", "db.example.org")
}

func (w *world) testObjects(t *testing.T) {
	w.service(t, "empty", object{"selector": object{"app": "empty"}})
	rejected := func(name, code string, words ...string) {
		t.Helper()
		r := w.settled(t, client, "service/shop/"+name, func(r traced) bool { return has(code)(r) && r.problems()[0].Rule != "" })
		wants(t, r, code, append(words, "node1: ")...)
	}
	rejected("empty", "no-endpoints", "no pod has the labels app=empty", "get pods --selector=app=empty")
	w.service(t, "unready", nil)
	w.endpoints(t, "unready", httpPort, backend{"node2/pod1", object{"ready": false, "serving": false, "terminating": false}},
		backend{"node3/pod1", object{"ready": false, "serving": false, "terminating": true}})
	rejected("unready", "none-ready", "node2-pod1 on node2) is not ready", "node3-pod1 on node3) is terminating")
	w.service(t, "ending", nil)
	w.endpoints(t, "ending", httpPort, backend{"node2/pod1", object{"ready": false, "serving": true, "terminating": true}})
	w.fine(t, client, "service/shop/ending")
	w.service(t, "named", object{"ports": []object{{"name": "http", "port": 80, "targetPort": "web"}}})
	w.endpoints(t, "named", object{"name": "other", "port": 8080, "protocol": "TCP"}, backend{pod: "node2/pod1"})
	rejected("named", "target-port-unknown", `targetPort "web"`)
}

func (w *world) testPolicies(t *testing.T) {
	w.service(t, "internal", object{"internalTrafficPolicy": "Local"})
	w.endpoints(t, "internal", httpPort, backend{pod: "node2/pod1"})
	r := w.settled(t, client, "service/shop/internal", func(r traced) bool {
		return has("none-on-this-node")(r) && r.problems()[0].Rule != ""
	})
	wants(t, r, "none-on-this-node", "no ready endpoint on node1", "internalTrafficPolicy is Local", "node1: ")
	w.fine(t, "node2/pod2", "service/shop/internal")
	ports := []object{{"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080}}
	w.service(t, "outside", object{"type": "NodePort", "ports": ports})
	w.endpoints(t, "outside", httpPort, backend{pod: "node3/pod1"})
	near, far := w.node(t, "node1").Underlay()[0].String()+":30080", w.node(t, "node2").Underlay()[0].String()+":30080"
	for _, dst := range []string{near, far} {
		r := w.fine(t, client, dst).Services[0]
		if e := r.Endpoints[0]; r.Way != "node port" || e.Chosen != r.Sent || e.Tracked != r.Sent || e.Rule == "" {
			t.Errorf("%s: %+v", dst, r)
		}
	}
	w.patch(t, "outside", `{"spec":{"externalTrafficPolicy":"Local"}}`)
	wants(t, w.settled(t, client, far, has("none-on-this-node")), "none-on-this-node", "no ready endpoint on node2",
		"externalTrafficPolicy is Local")
	wants(t, w.trace(t, client, strings.Replace(far, "30080", "30081", 1)), "no-service", "node2", "30081")
}

func (w *world) testSticky(t *testing.T) {
	w.service(t, "sticky", object{"sessionAffinity": "ClientIP",
		"sessionAffinityConfig": object{"clientIP": object{"timeoutSeconds": 600}}})
	w.endpoints(t, "sticky", httpPort, backend{pod: "node1/pod2"}, backend{pod: "node2/pod1"}, backend{pod: "node3/pod1"})
	r := w.fine(t, client, "service/shop/sticky").Services[0]
	if e := r.Endpoints[0]; e.Chosen != r.Sent || !strings.Contains(r.Sticks, "sticks to "+e.To.String()) ||
		!strings.Contains(r.Sticks, "silent for 10m") || !strings.Contains(e.Because+e.Rule, "sticky") ||
		!strings.Contains(e.Because, "--rcheck") && !strings.Contains(e.Because, "@affinity-") {
		t.Errorf("%+v", r)
	}
}

func (w *world) testHeadless(t *testing.T) {
	w.service(t, "pods", object{"clusterIP": "None"})
	w.endpoints(t, "pods", httpPort, backend{pod: "node2/pod1"}, backend{pod: "node2/pod2"})
	r := w.trace(t, client, "pods.shop.svc:80")
	wants(t, r, "nobody-listens", "node2-pod2", "nobody listens on TCP 8080")
	if s := r.Services[0]; s.Way != "headless" || s.Sent != 2 || s.Answered != 1 {
		t.Errorf("%+v", s)
	}
}

func (w *world) testPods(t *testing.T) {
	w.serve(t, "node2/pod2", ":9090")
	w.serve(t, "node3/pod2", "127.0.0.1:8080")
	w.hang(t, "node3/pod2", ":8081")
	w.service(t, "hung", nil)
	w.endpoints(t, "hung", object{"name": "http", "port": 8081, "protocol": "TCP"}, backend{pod: "node3/pod2"})
	w.service(t, "deaf", nil)
	w.endpoints(t, "deaf", httpPort, backend{pod: "node2/pod1"}, backend{pod: "node2/pod2"}, backend{pod: "node3/pod2"})
	r := w.settled(t, client, "service/shop/deaf", func(r traced) bool {
		return has("nobody-listens")(r) && has("listens-elsewhere")(r)
	})
	wants(t, r, "nobody-listens", "node2-pod2", "nobody listens on TCP 8080 in the pod; it listens on 9090", "targetPort (now 8080)")
	wants(t, r, "listens-elsewhere", "node3-pod2", "127.0.0.1:8080")
	hung := w.settled(t, client, "service/shop/hung", has("not-accepted"))
	wants(t, hung, "not-accepted", "node3/pod2", "accepts no connections", "backlog")
	for _, e := range r.Services[0].Endpoints {
		if e.To.Addr() == w.pod(t, "node2/pod1").Addrs[0] && e.Answered != e.Chosen {
			t.Errorf("%+v: want it to answer", e)
		}
	}
}

func (w *world) testProxy(t *testing.T) {
	w.service(t, "old", nil)
	w.endpoints(t, "old", httpPort, backend{pod: "node2/pod2"})
	w.settled(t, client, "service/shop/old", has("nobody-listens"))
	w.service(t, "empty", nil)
	w.settled(t, client, "service/shop/empty", func(r traced) bool { return r.problems()[0].Rule != "" })
	wants(t, w.trace(t, "node3/pod1", "service/shop/old"), "not-programmed", "node3", "met no rule of kube-proxy")
	w.pause(t, "node1")
	w.service(t, "new", nil)
	w.endpoints(t, "new", httpPort, backend{pod: "node2/pod1"})
	wants(t, w.trace(t, client, "service/shop/new"), "not-programmed", "kube-proxy has no rule for "+
		w.clusterIP(t, "new").String()+":80 on node1")
	w.endpoints(t, "empty", httpPort, backend{pod: "node2/pod1"})
	wants(t, w.trace(t, client, "service/shop/empty"), "not-programmed", "it has old objects", "node1: ")
	body := `{"endpoints":[{"addresses":["` + w.pod(t, "node3/pod1").Addrs[0].String() + `"],"nodeName":"node3"}]}`
	if _, err := w.API(t.Context(), http.MethodPatch, slicesPath+"/old-1", []byte(body)); err != nil {
		t.Fatal(err)
	}
	wants(t, w.trace(t, client, "service/shop/old"), "stale-endpoint", "node1 still sends to "+
		w.pod(t, "node2/pod2").Addrs[0].String())
}

func (w *world) testPath(t *testing.T) {
	w.service(t, "near", nil)
	w.endpoints(t, "near", httpPort, backend{pod: "node1/pod2"})
	w.fine(t, client, "service/shop/near")
	t.Run("reply", func(t *testing.T) {
		const key = "net.bridge.bridge-nf-call-iptables"
		w.during(t, "node1", "sysctl -qw "+key+"=0", "sysctl -qw "+key+"=1")
		wants(t, w.trace(t, client, "service/shop/near"), "reply-bypasses", "answers the client directly", "br_netfilter",
			w.pod(t, "node1/pod2").Addrs[0].String())
	})
	w.serve(t, client, ":8080")
	w.service(t, "self", nil)
	w.endpoints(t, "self", httpPort, backend{pod: client})
	w.fine(t, client, "service/shop/self") // the client is its own endpoint
	w.service(t, "far", nil)
	w.endpoints(t, "far", httpPort, backend{pod: "node2/pod1"})
	w.fine(t, client, "service/shop/far")
	t.Run("rule", func(t *testing.T) {
		rule := "-I FORWARD -p tcp --dport 8080 -j DROP"
		w.during(t, "node2", "iptables "+rule, "iptables "+strings.Replace(rule, "-I", "-D", 1))
		wants(t, w.trace(t, client, "service/shop/far"), "rule-stops", "node2: iptables filter FORWARD", "--dport 8080 -j DROP",
			"iptables -t filter -D FORWARD")
	})
	t.Run("kernel", func(t *testing.T) {
		route := "blackhole " + w.pod(t, client).Addrs[0].String()
		w.during(t, "node2", "ip route add "+route, "ip route del "+route)
		wants(t, w.trace(t, client, "service/shop/far"), "kernel-drops", "the kernel of node2 drops packets to", "IP_RPFILTER")
	})
	t.Run("before", func(t *testing.T) {
		rule := "-t raw -I PREROUTING -p tcp -d " + w.clusterIP(t, "far").String() + " -j DROP"
		w.during(t, "node1", "iptables "+rule, "iptables "+strings.Replace(rule, "-I", "-D", 1))
		wants(t, w.trace(t, client, "service/shop/far"), "rule-stops", "node1: iptables raw PREROUTING")
	})
}

// testDoctor: a pod of each node connects, and node3 has no kube-proxy.
func (w *world) testDoctor(t *testing.T) {
	w.service(t, "asked", nil)
	w.endpoints(t, "asked", httpPort, backend{pod: "node2/pod1"})
	w.fine(t, client, "service/shop/asked")
	text, code := w.ask(t, "doctor", "--probe", "service/shop/asked")
	var survey struct {
		Services []traced
		Silent   []string
	}
	if err := json.Unmarshal([]byte(text), &survey); err != nil || code != 1 || len(survey.Silent) > 0 || len(survey.Services) != 3 {
		t.Fatalf("exit code %d, %v: %s", code, err, text)
	}
	for i, s := range survey.Services {
		if all := s.problems(); (len(all) > 0) != (i == 2) || i == 2 && all[0].Code != "not-programmed" {
			t.Errorf("node%d: %+v", i+1, all)
		}
	}
}

func (w *world) testUDP(t *testing.T) {
	dns := object{"ports": []object{{"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"}}}
	port := object{"name": "dns", "port": 5353, "protocol": "UDP"}
	w.serveUDP(t, "node2/pod1", 5353, true)
	w.service(t, "dns", dns)
	w.endpoints(t, "dns", port, backend{pod: "node2/pod1"})
	w.fine(t, client, "service/shop/dns:53/udp")
	syslog := object{"ports": []object{{"name": "log", "port": 514, "protocol": "UDP"}}}
	w.serveUDP(t, "node2/pod1", 514, false)
	w.service(t, "syslog", syslog)
	w.endpoints(t, "syslog", object{"name": "log", "port": 514, "protocol": "UDP"}, backend{pod: "node2/pod1"})
	w.fine(t, client, "service/shop/syslog") // it says nothing, and takes all
	w.service(t, "mute", dns)
	w.endpoints(t, "mute", port, backend{pod: "node2/pod2"})
	r := w.settled(t, client, "service/shop/mute", has("nobody-listens"))
	wants(t, r, "nobody-listens", "node2-pod2", "nobody listens on UDP 5353", "it listens on nothing")
}

func (w *world) testHostPort(t *testing.T) {
	pod := w.pod(t, "node2/pod1")
	w.create(t, "/api/v1/namespaces/shop/pods", object{"metadata": object{"name": "host"}, "spec": object{"nodeName": "node2",
		"containers":         []object{{"name": "c", "image": "none", "ports": []object{{"containerPort": 8080, "hostPort": 18080}}}},
		"serviceAccountName": "default", "automountServiceAccountToken": false}})
	status := `{"status":{"phase":"Running","podIP":"` + pod.Addrs[0].String() + `","podIPs":[{"ip":"` + pod.Addrs[0].String() + `"}]}}`
	if _, err := w.API(t.Context(), http.MethodPatch, "/api/v1/namespaces/shop/pods/host/status", []byte(status)); err != nil {
		t.Fatal(err)
	}
	dst := w.node(t, "node2").Underlay()[0].String() + ":18080"
	wants(t, w.trace(t, client, dst), "not-programmed", "node2", "shop/host", "portmap")
	rule := "-t nat -I PREROUTING -p tcp --dport 18080 -j DNAT --to-destination " + pod.Addrs[0].String() + ":8080"
	w.during(t, "node2", "iptables "+rule, "iptables "+strings.Replace(rule, "-I", "-D", 1))
	if r := w.fine(t, client, dst).Services[0]; r.Way != "host port" || r.Endpoints[0].Chosen != r.Sent {
		t.Errorf("%+v", r)
	}
}

// during runs a command on a node, and another when the test ends.
func (w *world) during(t *testing.T, node, do, undo string) {
	t.Helper()
	n, ctx := w.node(t, node), context.WithoutCancel(t.Context())
	run := func(command string) {
		if out, err := n.Exec(ctx, strings.Fields(command)...); err != nil {
			t.Errorf("%s: %v: %s", command, err, out)
		}
	}
	run(do)
	t.Cleanup(func() { run(undo) })
}

func (w *world) patch(t *testing.T, service, patch string) {
	t.Helper()
	if _, err := w.API(t.Context(), http.MethodPatch, servicesPath+"/"+service, []byte(patch)); err != nil {
		t.Fatal(err)
	}
}
