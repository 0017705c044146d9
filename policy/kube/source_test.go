package kube

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/policy"
)

// TestSource is the source against a real API server.
func TestSource(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	for name, test := range map[string]func(*testing.T, *server){
		"Pod": podLives, "Ports": portsOf, "Rules": rulesChange, "Rights": rightsLate, "Outage": outage, "Old": oldServer,
		"Cluster": clusterPolicies,
	} {
		t.Run(name, func(t *testing.T) {
			s.clear(t)
			test(t, s)
		})
	}
}

const pods, policies = core + "/default/pods/", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"

// started is a watch that has told its first change.
func (s *server) started(t *testing.T) *watched {
	t.Helper()
	w := watching(t, s.open(t, reader))
	testwait.Until(t, "the first change", func() bool { return w.told() == "rules" })
	return w
}

// podLives: from a pod without addresses to one that has ended, each step is told once, and pods of the host's network
// are not told.
func podLives(t *testing.T, s *server) {
	s.createPod(t, "old", nil)
	w := s.started(t)
	if p := w.pod("old"); p == nil || p.Labels["app"] != "old" || !p.Created.Equal(s.created(t, pods+"old")) {
		t.Errorf("a pod that was there first is %+v", p)
	}
	w.expect("+web", func() { s.createPod(t, "web", nil) })
	if p := w.pod("web"); len(p.Addrs) > 0 || p.Node != "" {
		t.Errorf("without a node and addresses it is %s", dump(p))
	}
	w.expect("~web", func() {
		s.create(t, pods+"web/binding", corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}})
	})
	took := w.expect("~web", func() {
		s.setStatus(t, "web", `{"phase":"Running","podIPs":[{"ip":"10.244.1.2"},{"ip":"fd00::2"}],"podIP":"10.244.1.2"}`)
	})
	t.Logf("an address is told after %s", took.Round(time.Millisecond))
	if p := w.pod("web"); len(p.Addrs) != 2 || p.Addrs[1] != netip.MustParseAddr("fd00::2") || p.Node != "n1" {
		t.Errorf("with a node and addresses it is %s", dump(p))
	}
	w.expect("~web", func() { s.patch(t, pods+"web", `{"metadata":{"labels":{"app":"other"}}}`) })
	w.expect("-old", func() {
		s.patch(t, pods+"web", `{"metadata":{"annotations":{"what":"nobody cares"}}}`)
		s.createPod(t, "host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
		s.delete(t, pods+"old")
	})
	w.expect("+last", func() { s.createPod(t, "last", nil) })
	w.expect("-web", func() { s.setStatus(t, "web", `{"phase":"Succeeded"}`) })
	w.expect("-last", func() { s.setStatus(t, "last", `{"phase":"Failed"}`) })
}

// portsOf: containers' named ports are those of policies, and sidecars'.
func portsOf(t *testing.T, s *server) {
	w := s.started(t)
	always := corev1.ContainerRestartPolicyAlways
	w.expect("+web", func() {
		s.createPod(t, "web", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {ContainerPort: 1}}
			p.Spec.InitContainers = []corev1.Container{
				{Name: "i", Image: "none", Ports: []corev1.ContainerPort{{Name: "gone", ContainerPort: 2}}},
				{Name: "s", Image: "none", RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 53, Protocol: "UDP"}}},
			}
		})
	})
	got := w.pod("web").Ports
	if len(got) != 2 || got[0] != (policy.Port{Name: "http", Protocol: "TCP", Number: 8080}) || got[1] != (policy.Port{Name: "dns", Protocol: "UDP", Number: 53}) {
		t.Errorf("got the ports %v", got)
	}
}

// rulesChange: policies that come, change and go make rules new, as labels of namespaces do; annotations do not.
func rulesChange(t *testing.T, s *server) {
	w := s.started(t)
	deny := map[string]any{"metadata": map[string]any{"name": "deny"}, "spec": map[string]any{"podSelector": map[string]any{}}}
	took := w.expect("rules", func() { s.create(t, policies, deny) })
	t.Logf("a policy is told after %s", took.Round(time.Millisecond))
	snap := w.snapshot()
	if p := snap.Policies; len(p) != 1 || p[0].Name != "deny" || p[0].Namespace != "default" || len(p[0].Spec.PolicyTypes) != 1 {
		t.Errorf("got the policies %+v", snap.Policies)
	}
	if snap.Namespaces["default"]["kubernetes.io/metadata.name"] != "default" {
		t.Errorf("got the namespaces %v", snap.Namespaces)
	}
	w.expect("rules", func() {
		s.patch(t, policies+"/deny", `{"metadata":{"annotations":{"what":"nobody cares"}}}`)
		s.patch(t, core+"/default", `{"metadata":{"annotations":{"what":"nobody cares"}}}`)
		testwait.Pause(t, 30*time.Millisecond, "what is told of annotations is not told together with what follows")
		s.patch(t, policies+"/deny", `{"spec":{"podSelector":{"matchLabels":{"app":"web"}}}}`)
	})
	if p := w.snapshot().Policies[0]; p.Spec.PodSelector.MatchLabels["app"] != "web" {
		t.Errorf("the policy became %+v", p.Spec)
	}
	w.expect("rules", func() { s.patch(t, core+"/default", `{"metadata":{"labels":{"team":"a"}}}`) })
	if team := w.snapshot().Namespaces["default"]["team"]; team != "a" {
		t.Errorf("the namespace's label is %q", team)
	}
	w.expect("rules", func() { s.patch(t, core+"/default", `{"metadata":{"labels":{"team":null}}}`) })
	w.expect("rules", func() { s.delete(t, policies+"/deny") })
	if len(w.snapshot().Policies) > 0 {
		t.Errorf("left is %+v", w.snapshot().Policies)
	}
}

// rightsLate: while one kind cannot be read nothing is told but which right is missing, once; then all goes on.
func rightsLate(t *testing.T, s *server) {
	const role = "policytest-some"
	s.createPod(t, "web", nil)
	if err := s.api.ApplyRole(t.Context(), role, rights[:1], stranger); err != nil {
		t.Fatal(err)
	}
	api := s.open(t, stranger)
	asked := counted(api)
	w := watching(t, api)
	testwait.Until(t, "word of it", func() bool {
		return w.waited("watch networkpolicies: the API server forbids list on networkpolicies",
			"a ClusterRole of the agent must have the verbs list and watch on networkpolicies.networking.k8s.io")
	})
	asked.more(t, "networkpolicies", 3)
	w.mu.Lock()
	if len(w.waits) != 1 || len(w.changes) != 0 {
		t.Errorf("told %q, and the changes %q", w.waits, w.changes)
	}
	w.mu.Unlock()
	if err := s.api.ApplyRole(t.Context(), role, rights, stranger); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the first change", func() bool { return w.told() == "rules" })
	if w.pod("web") == nil {
		t.Error("the first change lacks a pod")
	}
	testwait.Until(t, "word that it is over", func() bool { return w.waited("watch networkpolicies: ok") })
}

// outage: while the API server is away nothing changes; then all that happened is told, and nothing else.
func outage(t *testing.T, s *server) {
	s.createPod(t, "stays", nil)
	s.createPod(t, "goes", nil)
	api := s.open(t, reader)
	asked := counted(api)
	w := watching(t, api)
	testwait.Until(t, "the first change", func() bool { return w.told() == "rules" })
	s.wire.Cut()
	testwait.Until(t, "word of it", func() bool {
		return w.waited("watch pods", "connection refused") && w.waited("watch namespaces", "connection refused")
	})
	var mended time.Time
	w.expect("+comes -goes", func() {
		s.delete(t, pods+"goes")
		s.createPod(t, "comes", nil)
		asked.more(t, "pods", 3)
		if got := w.told(); got != "rules" {
			t.Errorf("while the API server was away it was told %q", got)
		}
		s.wire.Mend()
		mended = time.Now()
	})
	t.Logf("in sync %s after the outage", time.Since(mended).Round(time.Millisecond))
	testwait.Until(t, "word that it is over", func() bool { return w.waited("watch pods: ok") })
}

// old is an API server that cannot select pods by hostNetwork.
type old struct{ http.RoundTripper }

func (o old) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.RawQuery, "spec.hostNetwork") {
		r = r.Clone(r.Context())
		q := r.URL.Query()
		q.Set("fieldSelector", "spec.unheardOf=false")
		r.URL.RawQuery = q.Encode()
	}
	return o.RoundTripper.RoundTrip(r)
}

func oldServer(t *testing.T, s *server) {
	s.createPod(t, "host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	s.createPod(t, "web", nil)
	api := s.open(t, reader)
	api.HTTP.Transport = old{api.HTTP.Transport}
	w := watching(t, api)
	testwait.Until(t, "the first change", func() bool { return w.told() == "rules" })
	if len(w.snapshot().Pods) != 1 || w.pod("web") == nil {
		t.Errorf("got the pods %v, want one", w.snapshot().Pods)
	}
	w.expect("+last", func() {
		s.createPod(t, "next-host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
		s.createPod(t, "last", nil)
	})
}

// TestRestart restarts the API server under a Watch, which then has no history: what went meanwhile is told as gone,
// and what stays is not told.
func TestRestart(t *testing.T) {
	etcd := controlplanetest.Etcd(t)
	cfg := controlplane.APIServerConfig{Dir: t.TempDir(), EtcdEndpoints: etcd.Endpoints()}
	s := startServer(t, cfg)
	for _, name := range []string{"stays", "goes"} {
		s.createPod(t, name, nil)
	}
	deny := map[string]any{"metadata": map[string]any{"name": "deny"}, "spec": map[string]any{"podSelector": map[string]any{}}}
	s.create(t, policies, deny)
	w := s.started(t)
	s.wire.Cut()
	s.delete(t, pods+"goes")
	s.delete(t, policies+"/deny")
	if err := s.api.Close(); err != nil {
		t.Fatal(err)
	}
	compact(t, etcd)
	cfg.Listen = netip.MustParseAddrPort(strings.TrimPrefix(s.api.URL(), "https://"))
	cfg.Users = []controlplane.User{{Name: reader}, {Name: stranger}}
	cfg.Flags = []string{"--disable-admission-plugins=ServiceAccount"}
	s.api = controlplanetest.Start(t, cfg)
	s.connect(t)
	s.wire.Mend()
	testwait.Until(t, "what went", func() bool { return strings.Contains(w.told(), "-goes") && len(w.snapshot().Policies) == 0 })
	if got := w.told(); strings.Contains(got, "stays") || strings.Count(got, "rules") != 2 {
		t.Errorf("told %q", got)
	}
	s.createPod(t, "comes", nil)
	testwait.Until(t, "what comes later", func() bool { return strings.HasSuffix(w.told(), "+comes") })
}

// compact makes etcd forget all history.
func compact(t *testing.T, e *controlplane.Etcd) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), DialTimeout: testwait.Limit})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now, err := c.Get(t.Context(), "nothing")
	if err == nil {
		_, err = c.Compact(t.Context(), now.Header.Revision)
	}
	if err != nil {
		t.Fatalf("compact: %v", err)
	}
}
