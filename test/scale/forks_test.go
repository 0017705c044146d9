package scale

import (
	"os"
	"os/exec"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestForks sees each process that this one starts, and no thread.
func TestForks(t *testing.T) {
	if err := exec.Command("true").Run(); err != nil { // the first time, Go starts one more to see what the kernel can
		t.Fatal(err)
	}
	f, err := CountForks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const n = 20
	for range n {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	testwait.Until(t, "all processes are seen", func() bool { return f.Count() >= n })
	if f.Count() != n {
		t.Errorf("%d processes were started, %d were seen", n, f.Count())
	}
}
