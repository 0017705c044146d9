package daemon

import (
	"os"
	"os/exec"
	"testing"

	"github.com/twill-net/twill/backend/backendtest"
)

// TestMain runs the tests in a network namespace of their own: an agent of another package's tests may hold the name
// by which there is only one in a namespace.
func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

// loopback sets the namespace's loopback device up.
func loopback(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
