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
	const nobody = 65534
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, 0); errno != 0 { // of this thread alone
		t.Fatal(errno)
	}
	l, err := net.Listen("unix", hostLock)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	unlock, err := lockHost("/run/flannel/subnet.env", 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
