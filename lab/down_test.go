package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twill-net/twill/internal/host"
)

// TestDownTorn: whatever state.json is, the lab's namespaces and files go, also those of nodes with names of their own,
// and only these.
func TestDownTorn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	const name = "torntest"
	for what, state := range map[string]func(path string) error{
		"empty":         func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"half":          func(path string) error { return os.WriteFile(path, []byte(`{"Spec": {"names": ["wor`), 0o644) },
		"a directory":   func(path string) error { return os.MkdirAll(filepath.Join(path, "full"), 0o755) },
		"another shape": func(path string) error { return os.WriteFile(path, []byte(`{"Spec": 7}`), 0o644) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			namespace := func(name string) host.Host {
				h := host.Host{Name: name}
				_ = h.Delete() // what an earlier run left
				if err := h.Create(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = h.Delete() })
				return h
			}
			ours := []host.Host{namespace(name + "-node1"), namespace(name + "-worker"), namespace(name + "-worker-pod1")}
			other := namespace(name + "-other")
			if err := os.MkdirAll(filepath.Join(dir, name, "worker"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := state(filepath.Join(dir, name, stateFile)); err != nil {
				t.Fatal(err)
			}
			removed, err := Down(dir, name)
			if err != nil || !removed.Found || removed.Torn == nil {
				t.Errorf("%+v, %v", removed, err)
			}
			exists := func(h host.Host) bool {
				_, err := os.Stat(filepath.Join(host.Dir, h.Name))
				return err == nil
			}
			for _, h := range ours {
				if exists(h) {
					t.Errorf("%s stays", h.Name)
				}
			}
			if !exists(other) {
				t.Errorf("%s, which is no node's, is gone", other.Name)
			}
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				t.Error("the lab's files stay")
			}
		})
	}
}
