package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/twill-net/twill/plugin/ipam"
)

// TestCnitool goes through every verb with the tool that people use to try a CNI config. Its cache is
// libcni's own, so the network has a name of its own.
func TestCnitool(t *testing.T) {
	if err := build("cnitool", "github.com/containernetworking/cni/cnitool"); err != nil {
		t.Fatal(err)
	}
	n, pod := newNode(t, envDual), newNamespace(t)
	name := fmt.Sprintf("twp-%d", os.Getpid())
	list, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": name,
		"plugins": []any{json.RawMessage(n.config(map[string]any{"cniVersion": "1.1.0", "name": name}))}})
	if err != nil {
		t.Fatal(err)
	}
	confs := filepath.Join(n.dir, "net.d")
	if err := os.MkdirAll(confs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(confs, "10-twill.conflist"), list, 0o644); err != nil {
		t.Fatal(err)
	}
	held := func() int {
		all, err := ipam.Store(filepath.Join(n.dir, "networks", name)).Allocations()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for _, step := range []struct {
		verb string
		held int
	}{{"status", 0}, {"add", 1}, {"check", 1}, {"status", 1}, {"del", 0}, {"del", 0}, {"add", 1}, {"gc", 0}} {
		c := exec.Command(filepath.Join(binaries, "cnitool"), step.verb, name, pod)
		c.Env = append(os.Environ(), "NETCONFPATH="+confs, "CNI_PATH="+binaries)
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		inside(t, n.ns, c.Start)
		if err := c.Wait(); err != nil {
			t.Fatalf("cnitool %s: %v: %s", step.verb, err, out.Bytes())
		}
		if got := held(); got != step.held {
			t.Fatalf("after cnitool %s the store holds something for %d pods, want %d", step.verb, got, step.held)
		}
	}
}
