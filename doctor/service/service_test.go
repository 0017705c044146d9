package service_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/service"
)

// objects are what "kubectl get services,endpointslices,nodes,pods -A -o json" prints, cut down.
const objects = `{"kind":"List","items":[
{"kind":"Service","metadata":{"namespace":"shop","name":"web"},"spec":{"type":"NodePort","clusterIP":"10.96.0.9",
  "clusterIPs":["10.96.0.9","fd00:10:96::9"],"externalIPs":["192.0.2.7"],"selector":{"tier":"front","app":"web"},
  "internalTrafficPolicy":"Cluster","externalTrafficPolicy":"Local","sessionAffinity":"ClientIP",
  "sessionAffinityConfig":{"clientIP":{"timeoutSeconds":600}},
  "ports":[{"name":"http","port":80,"targetPort":"web","nodePort":30080,"protocol":"TCP"},{"name":"dns","port":53,"targetPort":5353,"protocol":"UDP"}]}},
{"kind":"EndpointSlice","metadata":{"namespace":"shop","name":"web-1","labels":{"kubernetes.io/service-name":"web"}},
  "ports":[{"name":"http","port":8080,"protocol":"TCP"}],
  "endpoints":[{"addresses":["10.244.1.5"],"nodeName":"node1","targetRef":{"kind":"Pod","name":"web-0"},"conditions":{"ready":true}},
    {"addresses":["10.244.2.5"],"nodeName":"node2","conditions":{"ready":false,"serving":true,"terminating":true}},
    {"addresses":["10.244.3.5"],"nodeName":"node3","conditions":{"ready":false}}]},
{"kind":"EndpointSlice","metadata":{"namespace":"shop","name":"other-1","labels":{"kubernetes.io/service-name":"other"}},
  "ports":[{"name":"http","port":1}],"endpoints":[{"addresses":["10.244.9.9"]}]},
{"kind":"Node","metadata":{"name":"node2"},"status":{"addresses":[{"type":"InternalIP","address":"172.31.0.102"},{"type":"Hostname","address":"node2"}]}},
{"kind":"Pod","metadata":{"namespace":"shop","name":"db"},"spec":{"nodeName":"node2","containers":[{"ports":[{"containerPort":5432,"hostPort":15432}]}]},
  "status":{"phase":"Running","podIPs":[{"ip":"10.244.2.6"}]}},
{"kind":"ConfigMap","metadata":{"name":"x"}}]}
{"kind":"ServiceList","items":[{"metadata":{"namespace":"shop","name":"pods"},"spec":{"clusterIP":"None","ports":[{"port":80}]}},
  {"metadata":{"namespace":"shop","name":"alias"},"spec":{"type":"ExternalName","externalName":"db.example.org"}}]}`

func catalog(t *testing.T) service.Catalog {
	t.Helper()
	c, err := service.Parse([]byte(objects))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var client = []netip.Addr{netip.MustParseAddr("10.244.1.9")}

func goals(t *testing.T, dst string) ([]service.Target, *service.Problem) {
	t.Helper()
	q, ok, err := service.ParseQuery(dst)
	if err != nil || !ok {
		t.Fatalf("%s: %t, %v", dst, ok, err)
	}
	return catalog(t).Goals(q, "node1", client)
}

func TestParseQuery(t *testing.T) {
	for text, want := range map[string]string{
		"service/shop/web":                  "service/shop/web",
		"svc/web:80":                        "service/default/web:80",
		"service/shop/web:http":             "service/shop/web:http",
		"service/kube-system/dns:53/udp":    "service/kube-system/dns:53/udp",
		"web.shop.svc":                      "service/shop/web",
		"web.shop.svc.cluster.local:80/tcp": "service/shop/web:80/tcp",
		"db-0.db.shop.svc.cluster.local":    "service/shop/db",
		"10.96.0.1:443":                     "10.96.0.1:443",
		"[fd00::1]:53/udp":                  "[fd00::1]:53/udp",
		"node1/pod1":                        "",
		"10.244.1.2":                        "",
		"node1":                             "",
		"shop/db-1":                         "",
		"svc/":                              "error: want service/NAMESPACE/NAME",
		"service/a/b/c":                     "error: want service/NAMESPACE/NAME",
		"service/shop/web:80/icmp":          "error: want tcp, udp or sctp",
		"10.96.0.1:0":                       "error: want a port",
	} {
		q, ok, err := service.ParseQuery(text)
		got := ""
		switch {
		case err != nil:
			got = "error: " + err.Error()
		case ok:
			got = q.String()
		}
		if words, wrong := strings.CutPrefix(want, "error: "); wrong && !strings.Contains(got, words) || !wrong && got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestGoals(t *testing.T) {
	for _, c := range []struct {
		dst, to string
		way     service.Way
		n       int // endpoints
		node    string
	}{
		{"service/shop/web:http", "10.96.0.9:80", service.ByClusterIP, 3, "node1"},
		{"10.96.0.9:80", "10.96.0.9:80", service.ByClusterIP, 3, "node1"},
		{"192.0.2.7:80", "192.0.2.7:80", service.ByExternalIP, 3, "node1"},
		{"172.31.0.102:30080", "172.31.0.102:30080", service.ByNodePort, 3, "node2"},
		{"172.31.0.102:15432", "172.31.0.102:15432", service.ByHostPort, 1, "node2"},
		{"service/shop/web:53", "10.96.0.9:53", service.ByClusterIP, 0, "node1"},
		{"service/shop/pods", "invalid AddrPort", service.Headless, 0, "node1"},
	} {
		all, problem := goals(t, c.dst)
		if problem != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %+v", c.dst, all, problem)
		}
		if g := all[0]; g.To.String() != c.to || g.Way != c.way || len(g.Endpoints) != c.n || g.Node != c.node {
			t.Errorf("%s: %+v", c.dst, g)
		}
	}
	all, _ := goals(t, "service/shop/web")
	if len(all) != 2 || all[1].Unnamed != 3 {
		t.Errorf("%+v: want both ports, and that no endpoint has the second", all)
	}
	s := all[0].Service
	if s.Selector != "app=web,tier=front" || s.Sticky != 10*time.Minute || !s.ExternalLocal || s.InternalLocal {
		t.Errorf("%+v", s)
	}
	if e := all[0].Endpoints; e[0].To.String() != "10.244.1.5:8080" || !e[0].Ready || !e[0].Serving || e[1].Ready ||
		!e[1].Terminating || e[2].Serving {
		t.Errorf("%+v", e)
	}
}

func TestNoGoal(t *testing.T) {
	for dst, want := range map[string]string{
		"service/shop/wob":        "[no-service] there is no Service shop/wob; the namespace shop has alias, pods, web",
		"service/test/web":        "in the namespace shop",
		"service/shop/web:81":     "[no-port] Service shop/web has no port 81: it has http 80/TCP, dns 53/UDP",
		"service/shop/web:5353":   "5353 is the pods' port; the Service's is 53",
		"service/shop/web:80/udp": "has no port 80/UDP",
		"service/shop/alias":      "[external-name]",
		"10.96.0.10:80":           "[no-service] nothing in the cluster has the address 10.96.0.10",
		"172.31.0.102:30081":      "172.31.0.102 is the node node2, but port 30081",
		"10.96.0.9:81":            "[no-port]",
	} {
		all, p := goals(t, dst)
		if p == nil {
			t.Errorf("%s: %+v", dst, all)
			continue
		}
		var b strings.Builder
		if p.Write(&b); !strings.Contains(b.String(), want) || p.Fix == "" {
			t.Errorf("%s: %s, want %s", dst, b.String(), want)
		}
	}
}

func to(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// target is shop/web with the given endpoints.
func target(edit func(*service.Target)) service.Target {
	t := service.Target{Service: service.Service{Namespace: "shop", Name: "web", Type: "ClusterIP"}, Way: service.ByClusterIP,
		Port: service.Port{Name: "http", Proto: "TCP", Port: 80, Target: "8080"}, To: to("10.96.0.9:80"), Node: "node1",
		Endpoints: []service.Endpoint{
			{To: to("10.244.1.5:8080"), Node: "node1", Pod: "web-0", Ready: true, Serving: true},
			{To: to("10.244.2.5:8080"), Node: "node2", Pod: "web-1", Ready: true, Serving: true}}}
	if edit != nil {
		edit(&t)
	}
	return t
}

// hit is a rule of the table and the chain with which its text begins, behind the family.
func hit(host, text, rewrote string, stops bool) locate.Hit {
	words := strings.Fields(text)
	return locate.Hit{Host: host, Object: locate.Object{Kind: locate.Rule, Table: words[1], Chain: strings.TrimSuffix(words[2], ":"), Text: text,
		Fix: "take it away"}, Rewrote: rewrote, Stops: stops, Verdict: "drop"}
}

// jump is a rule that leads to a chain.
func jump(host, text, target string) locate.Hit {
	h := hit(host, text, "", false)
	h.Object.Target = target
	return h
}

func try(outcome service.Outcome, tracked string) service.Try {
	t := service.Try{From: to("10.244.1.9:40000"), To: to("10.96.0.9:80"), Outcome: outcome}
	if tracked != "" {
		t.Tracked, t.Wire, t.Hosts = to(tracked), to(tracked), []string{"node1", "node2", "node2/pod1"}
	}
	return t
}

func TestExplain(t *testing.T) {
	const reject = `iptables filter KUBE-SERVICES: -A KUBE-SERVICES --comment "shop/web:http has no endpoints" -j REJECT`
	deaf := map[netip.AddrPort]service.Socket{to("10.244.2.5:8080"): {Known: true, Bound: []netip.AddrPort{to("0.0.0.0:9090")}}}
	local := map[netip.AddrPort]service.Socket{to("10.244.2.5:8080"): {Known: true, Bound: []netip.AddrPort{to("127.0.0.1:8080")}}}
	hears := map[netip.AddrPort]service.Socket{to("10.244.2.5:8080"): {Known: true, Bound: []netip.AddrPort{to("[::]:8080")}}}
	for name, c := range map[string]struct {
		edit func(*service.Target)
		o    service.Observations
		want string // empty: nothing
	}{
		"answered": {nil, service.Observations{Tries: []service.Try{try(service.Answered, "10.244.2.5:8080")}}, ""},
		"no endpoints": {func(t *service.Target) { t.Endpoints, t.Service.Selector = nil, "app=web" },
			service.Observations{Tries: []service.Try{try(service.Refused, "")}, Hits: []locate.Hit{hit("node1", reject, "", true)}},
			"[no-endpoints] Service shop/web has no endpoints: no pod has the labels app=web, or the controller manager does " +
				"not run\n  rule: node1: " + reject},
		"no selector": {func(t *service.Target) { t.Endpoints = nil }, service.Observations{Tries: []service.Try{try(service.Refused, "")}},
			"nobody has written an EndpointSlice"},
		"not programmed": {nil, service.Observations{Tries: []service.Try{try(service.Silent, "")}},
			"[not-programmed] nothing on node1 translates 10.96.0.9:80"},
		"not by kube-proxy": {nil, service.Observations{Tries: []service.Try{try(service.Silent, "")},
			Hits: []locate.Hit{jump("node1", "iptables nat PREROUTING: -A PREROUTING -j KUBE-SERVICES", "KUBE-SERVICES")}},
			"kube-proxy has no rule for 10.96.0.9:80 on node1"},
		"old objects": {nil, service.Observations{Tries: []service.Try{try(service.Refused, "")}, Hits: []locate.Hit{hit("node1", reject, "", true)}},
			"it has old objects"},
		"a rule before": {nil, service.Observations{Tries: []service.Try{try(service.Silent, "")},
			Hits: []locate.Hit{hit("node1", "inet fw prerouting handle 3: drop", "", true)}},
			"[rule-stops] a firewall rule on node1 stops packets of Service shop/web (drop)\n  rule: node1: inet fw prerouting handle 3: drop\n  fix: take it away"},
		"a rule that speaks of kube-proxy": {nil, service.Observations{Tries: []service.Try{try(service.Silent, "")},
			Hits: []locate.Hit{hit("node1", `inet fw prerouting handle 3: drop comment "before KUBE-SERVICES"`, "", true)}},
			"[rule-stops] a firewall rule on node1 stops packets of Service shop/web (drop)"},
		"deaf": {nil, service.Observations{Tries: []service.Try{try(service.Refused, "10.244.2.5:8080")}, Sockets: deaf},
			"10.244.2.5:8080 (web-1 on node2): nobody listens on TCP 8080 in the pod; it listens on 9090"},
		"on localhost": {nil, service.Observations{Tries: []service.Try{try(service.Refused, "10.244.2.5:8080")}, Sockets: local},
			"[listens-elsewhere] 10.244.2.5:8080 (web-1 on node2): the pod listens on 127.0.0.1:8080 only"},
		"refused out of sight": {nil, service.Observations{Tries: []service.Try{try(service.Refused, "10.244.2.5:8080")}},
			"[nobody-listens] 10.244.2.5:8080 (web-1 on node2) refuses the connection"},
		"refused by who listens": {nil, service.Observations{Tries: []service.Try{try(service.Refused, "10.244.2.5:8080")}, Sockets: hears},
			"[refused] 10.244.2.5:8080 (web-1 on node2) refuses the connection, although somebody listens there"},
		"lost": {nil, service.Observations{Tries: []service.Try{try(service.Silent, "10.244.2.5:8080")}, Sockets: hears},
			"[no-answer] 10.244.2.5:8080 (web-1 on node2) does not answer: packets to it were seen on node1, node2, node2/pod1"},
		"stale": {nil, service.Observations{Tries: []service.Try{try(service.Silent, "10.244.7.7:8080")}},
			"[stale-endpoint] node1 still sends to 10.244.7.7:8080"},
		"out of sight": {func(t *service.Target) { t.Node, t.Way = "node3", service.ByNodePort },
			service.Observations{Tries: []service.Try{try(service.Silent, "")}},
			"[no-answer] 10.96.0.9:80: no answer; the rules of node3, which choose the endpoint, could not be watched"},
		"local": {func(t *service.Target) { t.Service.InternalLocal, t.Endpoints = true, t.Endpoints[1:] },
			service.Observations{Tries: []service.Try{try(service.Silent, "")}}, "[none-on-this-node] Service shop/web has no ready endpoint on node1"},
		"sctp": {func(t *service.Target) { t.Port.Proto = "SCTP" }, service.Observations{}, "SCTP is not probed"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Watched = []string{"node1", "node2"}
			r := service.Explain(target(c.edit), c.o)
			var b strings.Builder
			r.Write(&b)
			if r.Failed() != (c.want != "") || !strings.Contains(b.String(), c.want) {
				t.Errorf("%s\nwant %q", b.String(), c.want)
			}
		})
	}
}

// TestExplainSome holds that each failing endpoint gets its own reason, and that the others do not.
func TestExplainSome(t *testing.T) {
	o := service.Observations{Tries: []service.Try{try(service.Answered, "10.244.1.5:8080"), try(service.Refused, "10.244.2.5:8080"),
		try(service.Answered, "10.244.1.5:8080")}}
	o.Hits = []locate.Hit{
		jump("node1", "ip kube-proxy service-web handle 5: numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }", "endpoint-a"),
		hit("node1", "ip kube-proxy endpoint-a handle 7: dnat to 10.244.1.5:8080", "daddr 10.96.0.9 to 10.244.1.5, dport 80 to 8080", false),
		hit("node1", "iptables nat KUBE-SEP-B: -j DNAT", "DNAT --to-destination 10.244.2.5:8080", false),
	}
	o.Hits[1].Effect.To, o.Hits[2].Effect.To = to("10.244.1.5:8080"), to("10.244.2.5:8080")
	r := service.Explain(target(func(t *service.Target) { t.Service.Sticky = 3 * time.Hour }), o)
	if len(r.Problems) != 1 || r.Problems[0].Lost != 1 || r.Answered != 2 {
		t.Fatalf("%+v", r)
	}
	next, ok := r.Next()
	if a := r.Endpoints[0]; !ok || next != to("10.244.2.5:8080") || a.Chosen != 2 || a.Rule != "node1: "+o.Hits[1].Object.Text ||
		a.Because != o.Hits[0].Object.Text || r.Endpoints[1].Rule != "node1: "+o.Hits[2].Object.Text {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.Sticks, "not kept") {
		t.Error(r.Sticks)
	}
}

// TestExplainOther holds that a rule is blamed only for packets of the endpoint that it stops.
func TestExplainOther(t *testing.T) {
	stop := hit("node2", "inet fw forward handle 9: drop", "", true)
	stop.Src, stop.Dst = client[0], netip.MustParseAddr("10.244.2.5")
	o := service.Observations{Watched: []string{"node1"}, Hits: []locate.Hit{stop},
		Tries: []service.Try{try(service.Silent, "10.244.2.5:8080"), try(service.Refused, "10.244.1.5:8080")}}
	r := service.Explain(target(nil), o)
	if len(r.Problems) != 2 || r.Problems[0].Code != service.NobodyListens || r.Problems[1].Code != service.RuleStops {
		t.Errorf("%+v", r.Problems)
	}
}

// TestExplainPolicies: a rule about network policies is no rule to take away.
func TestExplainPolicies(t *testing.T) {
	stop := hit("node2", "ip twill-policy in-1 handle 9: counter drop", "", true)
	stop.Object.Table, stop.Src, stop.Dst = "twill-policy", client[0], netip.MustParseAddr("10.244.2.5")
	o := service.Observations{Watched: []string{"node1"}, Hits: []locate.Hit{stop}, Tries: []service.Try{try(service.Silent, "10.244.2.5:8080")}}
	r := service.Explain(target(nil), o)
	if len(r.Problems) != 1 || r.Problems[0].Code != service.PolicyDenies || r.Problems[0].Place != "node2" ||
		!strings.HasPrefix(r.Problems[0].Fix, "kubectl twill policy 10.244.2.5") {
		t.Errorf("%+v", r.Problems)
	}
}

// TestExplainDatagrams holds that nobody has to answer a datagram, but somebody has to take it.
func TestExplainDatagrams(t *testing.T) {
	udp := func(t *service.Target) { t.Port.Proto = "UDP" }
	o := service.Observations{Tries: []service.Try{try(service.Silent, "10.244.2.5:8080")},
		Sockets: map[netip.AddrPort]service.Socket{to("10.244.2.5:8080"): {Known: true, Bound: []netip.AddrPort{to("0.0.0.0:8080")}}}}
	if r := service.Explain(target(udp), o); r.Failed() {
		t.Errorf("%+v", r.Problems)
	}
	o.Tries[0].Hosts = []string{"node1"}
	if r := service.Explain(target(udp), o); !r.Failed() {
		t.Error("a datagram that was not seen in the pod is taken for delivered")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(objects), "service/shop/web:80")
	f.Add([]byte(`{"kind":"List","items":[{"kind":"Service","spec":{"ports":[{"port":-1,"targetPort":{}}]}}]}`), "10.96.0.1:80")
	f.Add([]byte(`{"kind":"EndpointSlice","endpoints":[{"addresses":[]}]}`), "a.b.svc")
	f.Fuzz(func(t *testing.T, data []byte, dst string) {
		q, ok, err := service.ParseQuery(dst)
		if err != nil && ok != true && q.Name != "" {
			t.Error("an error without a Service")
		}
		c, parseErr := service.Parse(data)
		if parseErr != nil || err != nil || !ok {
			return
		}
		targets, problem := c.Goals(q, "node1", client)
		if (problem == nil) == (len(targets) == 0) {
			t.Errorf("%d targets and the problem %+v", len(targets), problem)
		}
		for _, g := range targets {
			r := service.Explain(g, service.Observations{Tries: []service.Try{try(service.Silent, "")}})
			if !r.Failed() {
				t.Error("nothing was answered, and nothing is wrong")
			}
		}
	})
}
