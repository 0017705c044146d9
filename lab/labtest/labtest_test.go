package labtest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
)

// TestMain is, in a second test program, one that takes the lock and waits for the end of its input.
func TestMain(m *testing.M) {
	if os.Getenv("TWILL_LOCK_AND_WAIT") == "" {
		os.Exit(m.Run())
	}
	unlock, err := onlyRun()
	fmt.Println("locked", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err == nil {
		unlock()
	}
}

// TestFastPath: the environment switches it on where the backend has one, and off nowhere.
func TestFastPath(t *testing.T) {
	for _, test := range []struct {
		value string
		spec  lab.Spec
		want  bool
	}{
		{"", lab.Spec{}, false},
		{"", lab.Spec{FastPath: true}, true},
		{"0", lab.Spec{}, false},
		{"1", lab.Spec{}, true},
		{"1", lab.Spec{Backend: "vxlan"}, true},
		{"1", lab.Spec{Backend: "host-gw"}, true},
		{"1", lab.Spec{Backend: "udp"}, false},
	} {
		t.Setenv("TWILL_FAST_PATH", test.value)
		if got := Spec(test.spec).FastPath; got != test.want {
			t.Errorf("TWILL_FAST_PATH=%s and backend %q: %v, want %v", test.value, test.spec.Backend, got, test.want)
		}
	}
}

// TestOnlyRun: a second program of the same tests, under another name, waits for the first: their labs have
// the same names.
func TestOnlyRun(t *testing.T) {
	unlock, err := onlyRun()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), other)
	cmd.Env = append(os.Environ(), "TWILL_LOCK_AND_WAIT=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- line
	}()
	testwait.Nil(t, "the other program waits for the lock", func() error {
		locks, err := os.ReadFile("/proc/locks") // "7: -> FLOCK  ADVISORY  WRITE PID …" waits
		if err == nil && !regexp.MustCompile(fmt.Sprintf(`-> FLOCK .* %d `, cmd.Process.Pid)).Match(locks) {
			err = fmt.Errorf("the process %d does not wait:\n%s", cmd.Process.Pid, locks)
		}
		return err
	})
	select {
	case line := <-said:
		t.Errorf("the other program does not wait: %q", line)
	default:
	}
	unlock()
	select {
	case line := <-said:
		if line != "locked <nil>\n" {
			t.Errorf("the other program said %q", line)
		}
	case <-time.After(testwait.Limit):
		t.Error("the other program waits for ever")
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
