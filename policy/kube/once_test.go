package kube

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/policy"
)

// TestOnce counts and reads what a real API server has, with the rights to do so, and without them.
func TestOnce(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	at := kubeclient.Server{Kubeconfig: s.api.KubeconfigFile(reader)}
	if n, err := Count(t.Context(), at); n != 0 || err != nil {
		t.Errorf("an empty cluster has %d policies, %v", n, err)
	}
	s.create(t, core, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	for _, name := range []string{"a", "b"} {
		p := policy.NetworkPolicy{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}}
		p.Name = name
		s.create(t, "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies", p)
	}
	if n, err := Count(t.Context(), at); n != 2 || err != nil {
		t.Errorf("got %d policies, %v, want 2", n, err)
	}
	if got, err := Read(t.Context(), at, true); len(got.Policies) != 2 || got.Namespaces["shop"] == nil || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	foreign := kubeclient.Server{Kubeconfig: s.api.KubeconfigFile(stranger)}
	if _, err := Count(t.Context(), foreign); kubeclient.StatusCode(err) != 403 {
		t.Errorf("without rights: %v, want 403", err)
	}
	if _, err := Read(t.Context(), foreign, false); err == nil || !strings.Contains(err.Error(), "must have the verbs list and watch") {
		t.Errorf("without rights: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	away := kubeclient.Server{Kubeconfig: s.api.KubeconfigFile(reader), URL: "https://192.0.2.1:1"}
	if _, err := Read(ctx, away, false); err == nil {
		t.Error("nobody answers, and all was read")
	}
}
