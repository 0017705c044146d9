package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestCloseAsksNobody: etcd is not asked to end, because it would wait for its clients.
func TestCloseAsksNobody(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	script := "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done"
	p, err := startProcess([]string{"/bin/sh", "-c", script}, log)
	if err != nil {
		t.Fatal(err)
	}
	said := func() string {
		data, _ := os.ReadFile(log)
		return string(data)
	}
	testwait.Until(t, "the process is ready", func() bool { return strings.Contains(said(), "ready") })
	(&Etcd{proc: p}).Close()
	if !p.gone() || strings.Contains(said(), "asked") {
		t.Errorf("gone: %t, and it said %q", p.gone(), said())
	}
}
