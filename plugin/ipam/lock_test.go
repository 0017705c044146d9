package ipam

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// TestHeldLock holds that a lock is not waited for without end, that the error says which it is and who has it, and that who
// gave up does not keep it when it is free at last.
func TestHeldLock(t *testing.T) {
	old := LockTimeout
	LockTimeout = 50 * time.Millisecond
	t.Cleanup(func() { LockTimeout = old })
	s := Store(t.TempDir())
	path := filepath.Join(string(s), "lock")
	held, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s was not released for 50ms by process %d (", path, os.Getpid())
	for range 3 {
		if _, err := s.Lock(t.Context()); err == nil || cnierr.Code(err) != 11 || !strings.Contains(err.Error(), want) {
			t.Errorf("a lock that is held: %v, want code 11 and %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Lock(ctx); err == nil || cnierr.Code(err) != 5 ||
		!strings.Contains(err.Error(), "lock "+path+": stopped by a signal while another process held it") {
		t.Errorf("a signal while it is held: %v", err)
	}
	held.Close()
	testwait.Nil(t, "the lock is free", func() error {
		f, err := s.Lock(t.Context())
		if err == nil {
			f.Close()
		}
		return err
	})
}

func TestHolder(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 1 08:01:7 0 EOF
2: FLOCK  ADVISORY  WRITE 999999999 08:01:9 0 EOF
3: FLOCK  ADVISORY  WRITE %d 08:01:7 0 EOF
3: -> FLOCK  ADVISORY  WRITE 1 08:01:7 0 EOF
`
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"08:01:7": fmt.Sprintf("process %d (%s)", os.Getpid(), strings.TrimSpace(string(name))),
		"08:01:9": "another process, which inherited it of process 999999999",
		"08:02:7": "another process",
	} {
		if got := holder(fmt.Sprintf(locks, os.Getpid()), file); got != want {
			t.Errorf("%s is held by %s, want %s", file, got, want)
		}
	}
	if got := Holder(filepath.Join(t.TempDir(), "none")); got != "another process" {
		t.Errorf("a file that is not there is held by %s", got)
	}
}
