package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/certs"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/etcd"
	"github.com/twill-net/twill/subnet/kube"
)

// TestStoreOfOthers: the key Store is for the Kubernetes API, and refused where leases are in a file.
func TestStoreOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "net-conf.json")
	if err := os.WriteFile(path, []byte(`{"Network":"10.244.0.0/16","Store":"leases"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &options{leaseFile: filepath.Join(dir, "leases.json"), netConfigs: path, nodeName: "n"}
	_, _, err := openStore(t.Context(), o, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), `the network config's key Store ("leases") is for leases in the Kubernetes API`) {
		t.Errorf("got %v", err)
	}
}

// TestCertificatesOfStores: the stores that may use certificates have the method that the agent asks for.
func TestCertificatesOfStores(t *testing.T) {
	type certified interface {
		Certificates() ([]certs.Certificate, error)
	}
	for _, s := range []subnet.Store{&etcd.Store{}, &kube.Store{}} {
		if _, ok := s.(certified); !ok {
			t.Errorf("%T says nothing of its certificates", s)
		}
	}
}
