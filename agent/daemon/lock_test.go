package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/testwait"
)

func settings(subnetFile string) agent.Settings { return agent.Settings{SubnetFile: subnetFile} }

// TestOneAgentInANetworkNamespace: a second network on a host says that it cannot, in one sentence
// that names the first.
func TestOneAgentInANetworkNamespace(t *testing.T) {
	newNICs(t)
	const timeout = 200 * time.Millisecond
	first := filepath.Join(t.TempDir(), "subnet.env")
	unlock, err := lockHost(t.Context(), settings(first), timeout)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := lockHost(t.Context(), settings("/run/second/subnet.env"), timeout); err == nil || !strings.Contains(err.Error(),
			`another twilld in this network namespace writes "`+first+`"`) {
			t.Errorf("the second agent: %v", err)
		}
	}
	time.AfterFunc(timeout/2, unlock) // the one that is replaced ends a little later
	unlock, err = lockHost(t.Context(), settings("/run/second/subnet.env"), testwait.Limit)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	other := make(chan error) // another namespace is another host
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			var unlock func()
			if unlock, err = lockHost(t.Context(), settings(first), timeout); err == nil {
				unlock()
			}
		}
		other <- err
	}()
	if err := <-other; err != nil {
		t.Errorf("in another namespace: %v", err)
	}
}

// TestLockOfSomebodyElse: a local user who takes the name does not keep the agent from starting.
func TestLockOfSomebodyElse(t *testing.T) {
	newNICs(t)
	l := asNobody(t, func() (net.Listener, error) { return net.Listen("unix", agent.SettingsSocket) })
	defer l.Close()
	unlock, err := lockHost(t.Context(), settings("/run/flannel/subnet.env"), 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestLockThatNobodyServes: nor does one who takes the name and does not answer, or has no room for
// whoever asks.
func TestLockThatNobodyServes(t *testing.T) {
	for name, backlog := range map[string]int{"never listens": -1, "never accepts": 0} {
		t.Run(name, func(t *testing.T) {
			newNICs(t)
			s := asNobody(t, func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
			t.Cleanup(func() { unix.Close(s) })
			if err := unix.Bind(s, &unix.SockaddrUnix{Name: agent.SettingsSocket}); err != nil {
				t.Fatal(err)
			}
			if backlog >= 0 {
				asNobody(t, func() (int, error) { return 0, unix.Listen(s, backlog) })
			}
			for err := error(nil); err == nil && backlog >= 0; { // fill the backlog
				c, e := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if e != nil {
					t.Fatal(e)
				}
				t.Cleanup(func() { unix.Close(c) })
				err = unix.Connect(c, &unix.SockaddrUnix{Name: agent.SettingsSocket})
			}
			unlock, err := lockHost(t.Context(), settings("/run/flannel/subnet.env"), 200*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			unlock()
		})
	}
}

// asNobody calls f with the thread's user of somebody without rights.
func asNobody[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	const nobody = 65534
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, 0); errno != 0 { // of this thread alone
		t.Fatal(errno)
	}
	got, err := f()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestSettingsOfTheRunningAgent: whoever asks gets the flags, the environment and the defaults as
// they were resolved, and no secret.
func TestSettingsOfTheRunningAgent(t *testing.T) {
	newNICs(t)
	if _, _, err := agent.AskSettings(); err == nil {
		t.Error("there are settings without an agent")
	}
	env := map[string]string{"FLANNELD_BRIDGE": "br7", "FLANNELD_ETCD_PASSWORD": "hunter2"}
	o, err := parseFlags(strings.Fields(`--iface=eth1 --iface-regex=^10\.1 --public-ip 203.0.113.7 --iptables-forward-rules=first --healthz-port=10256`),
		func(name string) (string, bool) { v, ok := env[name]; return v, ok }, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := o.settings()
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := lockHost(t.Context(), want, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	got, pid, err := agent.AskSettings()
	if err != nil || pid != os.Getpid() || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v of process %d, %v\nwant %+v", got, pid, err, want)
	}
	if got.Bridge != "br7" || got.Healthz != "0.0.0.0:10256" || got.Choice.Patterns[0].String() != `^10\.1` ||
		got.Choice.Public[0] != netip.MustParseAddr("203.0.113.7") || got.Checkpoint != "/var/lib/twill/checkpoint.json" {
		t.Errorf("got %+v", got)
	}
}

// TestSettingsTooLong: an answer of any length costs little.
func TestSettingsTooLong(t *testing.T) {
	for size, ok := range map[int]bool{50 << 10: true, 100 << 10: false} {
		newNICs(t)
		l, err := net.Listen("unix", agent.SettingsSocket)
		if err != nil {
			t.Fatal(err)
		}
		go agent.Settings{Bridge: strings.Repeat("x", size)}.Serve(l)
		if _, _, err := agent.AskSettings(); (err == nil) != ok {
			t.Errorf("an answer of %d bytes: %v", size, err)
		}
		l.Close()
	}
}

// TestSettingsOfSomebodyElse: a local user who takes the socket's name is not believed.
func TestSettingsOfSomebodyElse(t *testing.T) {
	newNICs(t)
	l := asNobody(t, func() (net.Listener, error) { return net.Listen("unix", agent.SettingsSocket) })
	defer l.Close()
	go settings("/run/flannel/subnet.env").Serve(l)
	if s, _, err := agent.AskSettings(); err == nil {
		t.Errorf("believed %+v", s)
	}
}

// TestWaitForALockEndsWithTheContext: an agent that waits for another one's lock ends when it is told to.
func TestWaitForALockEndsWithTheContext(t *testing.T) {
	newNICs(t)
	file := filepath.Join(t.TempDir(), "subnet.env")
	for name, lock := range map[string]func(context.Context) (func(), error){
		"host": func(ctx context.Context) (func(), error) { return lockHost(ctx, settings(file), time.Hour) },
		"file": func(ctx context.Context) (func(), error) { return lockFile(ctx, file, time.Hour) },
	} {
		unlock, err := lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, want the context's end", name, err)
		}
	}
}
