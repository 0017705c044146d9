package daemon

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestFollowLevel: one signal turns debugging on, and the next one off.
func TestFollowLevel(t *testing.T) {
	for _, verbosity := range []int{0, 1} {
		log, level, err := newLogger(&options{logFormat: "text", verbosity: verbosity}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		stop := followLevel(level, log)
		for range 3 {
			before := level.Level()
			if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			testwait.Until(t, "another level", func() bool { return level.Level() != before })
		}
		stop()
	}
}
