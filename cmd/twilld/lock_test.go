package main

import (
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOneAgentInANetworkNamespace: a second network on a host says that it cannot, in one sentence that names the first.
func TestOneAgentInANetworkNamespace(t *testing.T) {
	newNICs(t)
	const patience = 200 * time.Millisecond
	first := filepath.Join(t.TempDir(), "subnet.env")
	unlock, err := lockHost(first, patience)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := lockHost("/run/second/subnet.env", patience); err == nil || !strings.Contains(err.Error(),
			`another twilld in this network namespace writes "`+first+`"`) {
			t.Errorf("the second agent: %v", err)
		}
	}
	time.AfterFunc(patience/2, unlock) // the one that is replaced ends a little later
	unlock, err = lockHost("/run/second/subnet.env", patience)
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
			if unlock, err = lockHost(first, patience); err == nil {
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
	l := asNobody(t, func() (net.Listener, error) { return net.Listen("unix", hostLock) })
	defer l.Close()
	unlock, err := lockHost("/run/flannel/subnet.env", 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestLockThatNobodyServes: nor does one who takes the name and does not answer, or has no room for whoever asks.
func TestLockThatNobodyServes(t *testing.T) {
	for name, backlog := range map[string]int{"never listens": -1, "never accepts": 0} {
		t.Run(name, func(t *testing.T) {
			newNICs(t)
			s := asNobody(t, func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
			t.Cleanup(func() { unix.Close(s) })
			if err := unix.Bind(s, &unix.SockaddrUnix{Name: hostLock}); err != nil {
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
				err = unix.Connect(c, &unix.SockaddrUnix{Name: hostLock})
			}
			unlock, err := lockHost("/run/flannel/subnet.env", 200*time.Millisecond)
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
