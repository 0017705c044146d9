package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
