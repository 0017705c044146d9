// Package controlplanetest starts a genuine control plane for the length of one test.
package controlplanetest

import (
	"errors"
	"os"
	"testing"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/testall"
)

// Start starts etcd and kube-apiserver; both end with the test. Directory and etcd endpoints are filled in unless
// they are given. A missing binary skips the test, and fails it in CI, where nobody would see that it was skipped.
func Start(t testing.TB, cfg controlplane.APIServerConfig) *controlplane.APIServer {
	t.Helper()
	if cfg.Binary == "" {
		cfg.Binary = Binary(t, "kube-apiserver")
	}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if len(cfg.EtcdEndpoints) == 0 {
		cfg.EtcdEndpoints = Etcd(t).Endpoints()
	}
	s, err := controlplane.StartAPIServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Etcd starts an etcd that ends with the test.
func Etcd(t testing.TB) *controlplane.Etcd {
	t.Helper()
	Binary(t, "etcd")
	e, err := controlplane.StartEtcd(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// Binary finds a Kubernetes program. Without it the test is skipped, and in CI (environment CI=true) it fails. Under
// -short only etcd is used: the others take minutes to build.
func Binary(t testing.TB, name string) string {
	t.Helper()
	if name != "etcd" {
		testall.Needs(t, "a built "+name)
	}
	path, err := controlplane.FindBinary(name)
	switch {
	case err == nil:
		return path
	case errors.Is(err, controlplane.ErrNoBinary) && os.Getenv("CI") != "true":
		t.Skipf("needs a real %s: %v", name, err)
	default:
		t.Fatal(err)
	}
	return ""
}
