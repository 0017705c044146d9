package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long a new agent waits for the one that it replaces.
const lockPatience = 5 * time.Second

// lock makes sure that one agent writes the subnet file. It also finds out early whether it can be written.
func lock(subnetFile string) (unlock func(), err error) {
	dir := filepath.Dir(subnetFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ".twilld.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--subnet-file %s cannot be written: %w", subnetFile, err)
	}
	for end := time.Now().Add(lockPatience); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { f.Close() }, nil
		case errors.Is(err, unix.EINTR):
			continue
		case time.Now().After(end):
			f.Close()
			return nil, fmt.Errorf("another twilld on this node writes %s: stop it first", subnetFile)
		}
		<-time.After(lockPatience / 50)
	}
}

// hostLock is the name of an abstract socket: there is one of it in each network namespace, and it goes with its process.
const hostLock = "@twill/agent"

// maxPath bounds what another agent says of itself.
const maxPath = 4096

// lockHost makes sure that one agent works in this network namespace: two would take each other's devices and routes, which
// carry the same mark, for leftovers of their own. The other agent says which subnet file it writes. Whoever is not root, or
// does not answer, is no agent, and keeps nobody from starting.
func lockHost(subnetFile string, patience time.Duration) (unlock func(), err error) {
	for end := time.Now().Add(patience); ; <-time.After(patience / 50) {
		l, err := net.Listen("unix", hostLock)
		if err == nil {
			go answer(l, subnetFile)
			return func() { l.Close() }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("lock this network namespace: %w", err)
		}
		if time.Now().Before(end) {
			continue
		}
		if other, isAgent := askHost(); isAgent {
			return nil, fmt.Errorf("another twilld in this network namespace writes %q, and two would undo each other's work: "+
				"one network of Twill on a host, or one of Twill beside one of flannel", other)
		}
		return func() {}, nil
	}
}

// answer tells whoever connects of this agent.
func answer(l net.Listener, subnetFile string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(conn, subnetFile) // who asked has gone away
		conn.Close()
	}
}

// askHost is what the holder of the lock says of itself, and whether it is root's.
func askHost() (subnetFile string, isAgent bool) {
	conn, err := net.DialTimeout("unix", hostLock, time.Second)
	if err != nil {
		return "", false
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return "", false
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return "", false
	}
	if peer.Uid != 0 {
		return "", false
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	text, _ := io.ReadAll(io.LimitReader(conn, maxPath)) // what there is of it
	return string(text), true
}
