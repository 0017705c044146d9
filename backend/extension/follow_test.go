package extension

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// runsOf returns a Run of the options, as it is after load.
func runsOf(tr *trial, o Options) *runs {
	tr.Helper()
	r := &runs{Backend: &Backend{networks: networks, options: o}, env: tr.env(),
		file: filepath.Join(tr.dir, "extension.json")}
	if err := r.load(); err != nil {
		tr.Fatal(err)
	}
	return r
}

func view(peers ...subnet.Lease) backend.Input {
	return backend.Input{Snapshot: subnet.Snapshot{Local: lease(1, ""), Peers: peers}, Synced: true}
}

// TestFollow reports whether all commands of a view succeeded, those that are not set among them.
func TestFollow(t *testing.T) {
	fails := Options{PostStartupCommand: "false", SubnetAddCommand: "true", SubnetRemoveCommand: "true"}
	r := runsOf(newTrial(t), Options{})
	for range 2 {
		if !r.follow(t.Context(), view(lease(2, ""))) {
			t.Error("a command failed")
		}
	}
	if len(r.added) != 1 {
		t.Errorf("added are %v, want n2", r.added)
	}
	r.options, r.started = fails, false
	if r.follow(t.Context(), view(lease(3, ""))) {
		t.Error("PostStartupCommand failed, and commands after it did not")
	}
	if len(r.added) != 1 || !r.fresh["n3"] {
		t.Errorf("added are %v, want n3", r.added)
	}
	if !r.save() {
		t.Error("the file holds everything, and could not be saved")
	}
}

// TestMovedSubnet: a peer whose subnet of one family is another one is removed and added.
func TestMovedSubnet(t *testing.T) {
	for family := range 2 {
		tr := newTrial(t)
		r := runsOf(tr, Options{Shell: true, SubnetAddCommand: tr.heard("add"), SubnetRemoveCommand: tr.heard("remove")})
		before, after := lease(2, "k"), lease(2, "k")
		after.Stacks[family].Subnet = lease(3, "").Stacks[family].Subnet
		if !r.follow(t.Context(), view(before)) || !r.follow(t.Context(), view(after)) {
			t.Error("a command failed")
		}
		out, err := os.ReadFile(tr.out)
		var words []string
		for line := range strings.Lines(string(out)) {
			words = append(words, strings.Fields(line)[0])
		}
		if err != nil || !slices.Equal(words, []string{"add", "remove", "add"}) {
			t.Errorf("family %d: the commands were\n%s, %v", family, out, err)
		}
	}
}

// TestSaveFails: what cannot be remembered is told, and the view is tried again.
func TestSaveFails(t *testing.T) {
	tr := newTrial(t)
	r := runsOf(tr, Options{})
	r.file = filepath.Join(tr.dir, "missing", "extension.json")
	if r.follow(t.Context(), view(lease(2, ""))) {
		t.Error("a view succeeded that could not be remembered")
	}
	if len(tr.said) != 1 || !strings.Contains(tr.said[0], "remember the peers") {
		t.Errorf("said %q", tr.said)
	}
}

// TestOptionErrors: New returns the errors of the options, with and without a shell.
func TestOptionErrors(t *testing.T) {
	for _, options := range []string{`{"PreStartupCommand":1}`, `{"Shell":true,"PreStartupCommand":1}`, `{"Shell":1}`} {
		if _, _, err := New(networks, []byte(options)); err == nil {
			t.Errorf("%s was taken", options)
		}
	}
}

// TestPublishTwice: what is published does not change, and is not held by who asked for it.
func TestPublishTwice(t *testing.T) {
	b := &Backend{options: Options{PreStartupCommand: "echo key"}}
	if err := b.Prepare(t.Context(), newTrial(t).env()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		data, err := b.Publish(backend.Node{}, subnet.Lease{}, netstate.IPv4)
		if err != nil || string(data) != `"key"` {
			t.Errorf("got %s, %v", data, err)
		}
		clear(data)
	}
}

// TestCommandEnds: a command that takes too long ends with what it started, and one whose child holds the output open
// does not hold its caller.
func TestCommandEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	for name, test := range map[string]struct {
		command string
		limit   time.Duration
		gone    bool
	}{
		"a child in its group":  {"sleep infinity & echo $! > " + file + "; wait", 300 * time.Millisecond, true},
		"a child outside of it": {"setsid sleep infinity & echo $! > " + file, time.Hour, false},
	} {
		pid := 0
		for pid == 0 {
			err := ends(t, func() error {
				_, err := Options{Shell: true}.run(context.Background(), test.limit, test.command, "")
				return err
			})
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			text, err := os.ReadFile(file)
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
			if test.limit *= 4; pid == 0 && test.limit > testwait.Limit { // a busy machine may not have come to the child
				t.Fatalf("%s: the child's number is %q, %v", name, text, err)
			}
		}
		if !test.gone {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		testwait.Until(t, name+" ends", func() bool { return !running(pid) })
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// running reports whether a process runs: one that ended and that nobody waited for does not.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestTriedAgain: a command that fails is tried again for as long as it fails.
func TestTriedAgain(t *testing.T) { synctest.Test(t, testTriedAgain) }

func testTriedAgain(t *testing.T) {
	tr := newTrial(t)
	options := `{"Shell":true,"PostStartupCommand":"echo x >> ` + tr.out + `; exit 1"}`
	b, _, err := New(networks, []byte(options))
	if err != nil {
		t.Fatal(err)
	}
	stop := tr.start(b.(backend.Runner))
	defer stop()
	tr.show(true)
	for want := range 5 {
		synctest.Wait()
		data, err := os.ReadFile(tr.out)
		if got := strings.Count(string(data), "x"); got != want+1 {
			t.Errorf("after %s: %d tries, want %d; %v", time.Duration(want)*retry, got, want+1, err)
		}
		time.Sleep(retry)
	}
}
