package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVersion: asked for by people the plugin says its version, and a container runtime gets its own answer.
func TestVersion(t *testing.T) {
	program := filepath.Join(t.TempDir(), "twill")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-X main.version=v1.2.3", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), program, "--version").Output(); err != nil || !strings.HasPrefix(string(out), "twill v1.2.3 (go") {
		t.Errorf("--version: %v, %q", err, out)
	}
	c := exec.CommandContext(t.Context(), program, "--version")
	c.Env = []string{"CNI_COMMAND=VERSION"}
	c.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
	if out, err := c.Output(); err != nil || !strings.Contains(string(out), `"supportedVersions"`) {
		t.Errorf("a runtime's VERSION: %v, %q", err, out)
	}
}
