package controlplane_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
)

func TestFindBinary(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TWILL_KUBE_BIN", dir)
	_, err := controlplane.FindBinary("kube-nothing")
	if !errors.Is(err, controlplane.ErrNoBinary) || !strings.Contains(err.Error(), "make kube-tools") {
		t.Errorf("without the program: %v", err)
	}
	want := filepath.Join(dir, "kube-nothing")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := controlplane.FindBinary("kube-nothing"); got != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// The test runs itself again without the program, once as in CI and once as at home.
func TestMissingBinarySkipsAndFailsInCI(t *testing.T) {
	if os.Getenv("TWILL_TEST_MISSING") != "" {
		controlplanetest.Binary(t, "kube-apiserver")
		return
	}
	for _, c := range []struct{ ci, want string }{{"true", "--- FAIL"}, {"", "--- SKIP"}} {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "TWILL_TEST_MISSING=1", "TWILL_KUBE_BIN="+t.TempDir(), "CI="+c.ci)
		out, _ := cmd.CombinedOutput() // its end is in what it says
		if !strings.Contains(string(out), c.want) || !strings.Contains(string(out), "make kube-tools") {
			t.Errorf("CI=%q: want %q, got:\n%s", c.ci, c.want, out)
		}
	}
}
