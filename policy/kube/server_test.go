package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// reader has the rights that the package says are needed; stranger has none.
const reader, stranger = "policytest-reader", "policytest-stranger"

var rights = []controlplane.Rule{
	{APIGroups: []string{""}, Resources: []string{"pods", "namespaces", "nodes"}, Verbs: []string{"list", "watch"}},
	{APIGroups: []string{"policy.networking.k8s.io"}, Resources: []string{"clusternetworkpolicies"}, Verbs: []string{"list", "watch"}},
	{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list", "watch"}},
}

// server is a real API server; sources reach it through a wire that can be cut.
type server struct {
	api   *controlplane.APIServer
	admin *rest.RESTClient
	wire  *controlplanetest.Wire
	dir   string
}

func startServer(t *testing.T, cfg controlplane.APIServerConfig) *server {
	t.Helper()
	cfg.Users = []controlplane.User{{Name: reader}, {Name: stranger}}
	cfg.Flags = []string{"--disable-admission-plugins=ServiceAccount"} // pods need none
	s := &server{api: controlplanetest.Start(t, cfg), dir: t.TempDir()}
	s.connect(t)
	if err := s.api.ApplyRole(t.Context(), reader, rights, reader); err != nil {
		t.Fatal(err)
	}
	s.wire = controlplanetest.NewWire(t, strings.TrimPrefix(s.api.URL(), "https://"))
	return s
}

// connect makes the admin's client, which lives as long as the API server.
func (s *server) connect(t *testing.T) {
	t.Helper()
	cfg, err := kubeclient.Server{Kubeconfig: s.api.KubeconfigFile(controlplane.Admin)}.Config()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	api, err := kubeclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	source, err := New(api, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.admin = source.policies
}

// do sends an object, or a patch of one, as JSON.
func (s *server) do(t *testing.T, r *rest.Request, object any) {
	t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Body(body).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

const core = "/api/v1/namespaces"

func (s *server) create(t *testing.T, path string, object any) {
	t.Helper()
	s.do(t, s.admin.Post().AbsPath(path).SetHeader("Content-Type", "application/json"), object)
}

func (s *server) patch(t *testing.T, path, merge string) {
	t.Helper()
	s.do(t, s.admin.Patch(types.MergePatchType).AbsPath(path), json.RawMessage(merge))
}

// delete deletes an object at once, if it is there.
func (s *server) delete(t *testing.T, path string) {
	t.Helper()
	err := s.admin.Delete().AbsPath(path).Param("gracePeriodSeconds", "0").Do(t.Context()).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

func (s *server) createPod(t *testing.T, name string, change func(*corev1.Pod)) {
	t.Helper()
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	if change != nil {
		change(&p)
	}
	s.create(t, core+"/default/pods", p)
}

func (s *server) setStatus(t *testing.T, name, status string) {
	t.Helper()
	s.patch(t, core+"/default/pods/"+name+"/status", `{"status":`+status+`}`)
}

// clear deletes what an earlier test left.
func (s *server) clear(t *testing.T) {
	t.Helper()
	for _, path := range []string{core + "/default/pods", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"} {
		s.delete(t, path)
	}
}

// open returns a client of a user, by way of the wire.
func (s *server) open(t *testing.T, user string) *kubeclient.Client {
	t.Helper()
	text := string(s.api.Kubeconfig(s.api.Token(user)))
	text = strings.ReplaceAll(text, strings.TrimPrefix(s.api.URL(), "https://"), s.wire.Address)
	path := filepath.Join(s.dir, user+".kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := kubeclient.Server{Kubeconfig: path}.Config()
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	api, err := kubeclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// created returns when the API server made an object.
func (s *server) created(t *testing.T, path string) time.Time {
	t.Helper()
	text, err := s.admin.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object.CreationTimestamp.Time
}

// requests counts what a client asks for, by the last part of the path.
type requests struct {
	http.RoundTripper

	mu    sync.Mutex
	count map[string]int
}

// counted counts the requests of a client from now on.
func counted(api *kubeclient.Client) *requests {
	r := &requests{RoundTripper: api.HTTP.Transport, count: map[string]int{}}
	api.HTTP.Transport = r
	return r
}

func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.count[path.Base(q.URL.Path)]++
	r.mu.Unlock()
	return r.RoundTripper.RoundTrip(q)
}

// more waits until a resource was asked for some more times. All but the last one have had an effect then.
func (r *requests) more(t *testing.T, resource string, times int) {
	t.Helper()
	now := func() int { r.mu.Lock(); defer r.mu.Unlock(); return r.count[resource] }
	want := now() + times
	testwait.Nil(t, fmt.Sprintf("%s are asked for %d times", resource, want), func() error {
		if n := now(); n < want {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
}

// watched is what a Watch told, and the pods that this makes.
type watched struct {
	t *testing.T

	mu      sync.Mutex
	changes []string
	pods    map[string]*policy.Pod
	last    policy.Snapshot
	waits   []string
}

// watching watches until the test ends.
func watching(t *testing.T, api *kubeclient.Client, options ...func(*Source)) *watched {
	t.Helper()
	w := &watched{t: t}
	s, err := New(api, w.wait)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range options {
		set(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- policytest.Follow(ctx, s, w.add) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Watch ended with %v", err)
		}
	})
	return w
}

func (w *watched) wait(task string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		err = errors.New("ok")
	}
	w.waits = append(w.waits, task+": "+err.Error())
}

// add holds what was told together with the snapshot: both must come to the same pods.
func (w *watched) add(c policy.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = c.Snapshot()
	if len(w.changes) == 0 {
		w.pods = map[string]*policy.Pod{}
		for _, p := range w.last.Pods {
			w.pods[p.UID] = p
		}
		if !c.Rules || len(c.Pods) > 0 {
			w.t.Errorf("the first change is %q", summary(c))
		}
	}
	for _, p := range c.Pods {
		apply(w.t, w.pods, p)
	}
	checkSnapshot(w.t, 0, w.last, w.pods)
	w.changes = append(w.changes, summary(c))
}

// told returns what was told since the last call, in one line, and whether that is anything.
func (w *watched) told() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.changes, "; ")
}

// pod returns a pod by its name.
func (w *watched) pod(name string) *policy.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.last.Pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (w *watched) snapshot() policy.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

func (w *watched) waited(parts ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.waits, func(s string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(s, part) })
	})
}

// expect does something, waits until what is told since is want, and returns how long that took.
func (w *watched) expect(want string, do func()) time.Duration {
	w.t.Helper()
	before := w.told()
	do()
	begin := time.Now()
	testwait.Nil(w.t, "\""+want+"\" is told", func() error {
		if since := strings.TrimPrefix(strings.TrimPrefix(w.told(), before), "; "); since != want {
			return fmt.Errorf("%q is", since)
		}
		return nil
	})
	return time.Since(begin)
}
