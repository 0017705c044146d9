package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/kubeclient"
)

const (
	agentUser    = "twill-agent" // has the rights of the manifest, and no more
	strangerUser = "stranger"    // has none at first
	note         = DefaultPrefix + "/"
)

// server is a real API server; the agents of the tests reach it through a wire that can be cut.
type server struct {
	api   *controlplane.APIServer
	admin *admin
	wire  *controlplanetest.Wire
	dir   string
}

func startServer(t *testing.T, cfg controlplane.APIServerConfig) *server {
	t.Helper()
	cfg.Users = []controlplane.User{{Name: agentUser}, {Name: strangerUser}}
	s := &server{api: controlplanetest.Start(t, cfg), dir: t.TempDir()}
	if err := s.api.ApplyAgentRBAC(t.Context(), agentUser); err != nil {
		t.Fatal(err)
	}
	rc, err := kubeclient.Server{Kubeconfig: s.api.KubeconfigFile(controlplane.Admin)}.Config()
	if err != nil {
		t.Fatal(err)
	}
	if s.admin, err = newAdmin(rc); err != nil {
		t.Fatal(err)
	}
	s.wire = controlplanetest.NewWire(t, strings.TrimPrefix(s.api.URL(), "https://"))
	return s
}

// admin is client-go's view of the API, so that the tests do not believe what they test, and the store's own calls.
type admin struct {
	*client
	rest, leases *rest.RESTClient
}

func newAdmin(cfg *rest.Config) (*admin, error) {
	cfg.QPS = -1
	shared, err := kubeclient.New(cfg)
	if err != nil {
		return nil, err
	}
	c, err := newClient(shared)
	if err != nil {
		return nil, err
	}
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(testScheme()).WithoutConversion()
	a := &admin{client: c}
	if a.rest, err = rest.RESTClientFor(cfg); err != nil {
		return nil, err
	}
	cfg.APIPath, cfg.GroupVersion = "/apis", &coordinationv1.SchemeGroupVersion
	a.leases, err = rest.RESTClientFor(cfg)
	return a, err
}

func testScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	metav1.AddToGroupVersion(scheme, coordinationv1.SchemeGroupVersion)
	scheme.AddKnownTypes(metav1.SchemeGroupVersion, &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}, &metav1.Status{})
	return scheme
}

// kubeconfig is a user's, by way of the wire.
func (s *server) kubeconfig(t *testing.T, user string) string {
	t.Helper()
	text := string(s.api.Kubeconfig(s.api.Token(user)))
	text = strings.ReplaceAll(text, strings.TrimPrefix(s.api.URL(), "https://"), s.wire.Address)
	path := filepath.Join(s.dir, user+".kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// clear deletes what an earlier test left.
func (s *server) clear(t *testing.T) {
	t.Helper()
	if err := s.admin.rest.Delete().Resource("nodes").Do(t.Context()).Error(); err != nil {
		t.Fatalf("delete all nodes: %v", err)
	}
	if err := s.admin.rest.Delete().Namespace("default").Resource("events").Do(t.Context()).Error(); err != nil {
		t.Fatalf("delete all events: %v", err)
	}
}

func (s *server) createNode(t *testing.T, n *corev1.Node) {
	t.Helper()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	if err := s.admin.rest.Post().Resource("nodes").Body(n).Do(t.Context()).Error(); err != nil {
		t.Fatalf("create node %s: %v", n.Name, err)
	}
}

func (s *server) deleteNode(t *testing.T, name string) {
	t.Helper()
	if err := s.admin.rest.Delete().Resource("nodes").Name(name).Do(t.Context()).Error(); err != nil {
		t.Fatalf("delete node %s: %v", name, err)
	}
}

func (s *server) hasNode(t *testing.T, name string) bool {
	t.Helper()
	err := s.admin.rest.Get().Resource("nodes").Name(name).Do(t.Context()).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func (s *server) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	if err := s.admin.rest.Get().Resource("nodes").Name(name).Do(t.Context()).Into(n); err != nil {
		t.Fatal(err)
	}
	return n
}

func networkCondition(n *corev1.Node) condition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			return condition{string(c.Status), c.Reason, c.Message}
		}
	}
	return condition{}
}

// annotate sets annotations behind the agent's back; nil removes one.
func (s *server) annotate(t *testing.T, node string, set map[string]any) {
	t.Helper()
	full := map[string]any{}
	for k, v := range set {
		full[note+k] = v
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": full}}
	if err := s.admin.patchStatus(t.Context(), node, types.MergePatchType, patch); err != nil {
		t.Fatal(err)
	}
}

// patchSpec is kube-controller-manager, which assigns podCIDRs.
func (s *server) patchSpec(t *testing.T, node, body string) {
	t.Helper()
	err := s.admin.rest.Patch(types.StrategicMergePatchType).Resource("nodes").Name(node).Body([]byte(body)).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
}

// post creates any object, given as a Go value that encodes to its JSON.
func (s *server) post(t *testing.T, path string, object any) {
	t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	err = s.admin.rest.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("create %s: %v", path, err)
	}
}

// eventsOf are the events on a node with a reason.
func (s *server) eventsOf(t *testing.T, object, reason string) []corev1.Event {
	t.Helper()
	raw, err := s.admin.rest.Get().Resource("events").
		SetHeader("Accept", "application/json").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var list corev1.EventList
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	var found []corev1.Event
	for _, e := range list.Items {
		if e.InvolvedObject.Name == object && e.Reason == reason {
			found = append(found, e)
		}
	}
	return found
}

func testNode(name string, podCIDRs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if len(podCIDRs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDRs[0], podCIDRs
	}
	return n
}

// flannelNode is a node as flannel v0.28 publishes it.
func flannelNode(i int) *corev1.Node {
	n := testNode(fmt.Sprintf("kubetest-peer-%03d", i), fmt.Sprintf("10.244.%d.0/24", i))
	n.Annotations = map[string]string{
		note + "kube-subnet-manager": "true",
		note + "backend-type":        "vxlan",
		note + "backend-data":        fmt.Sprintf(`{"VNI":1,"VtepMAC":"0a:00:00:00:00:%02x"}`, i),
		note + "public-ip":           fmt.Sprintf("192.0.2.%d", i),
	}
	return n
}

// background is a context that ends with the test, after its cleanups began.
func background(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}
