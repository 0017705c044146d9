package rootless

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// HoldCommand are the arguments with which this program is the holder.
var HoldCommand = []string{"lab", "hold"}

// The holder's files beside the standard ones: its socket, and a pipe to which it writes why it cannot hold labs.
const (
	socketFile = 3 + iota
	statusFile
)

// start starts the holder and returns when it can run commands. It listens first, so that nobody has to wait for that.
func (p paths) start() error {
	listener, err := p.listen()
	if err != nil {
		return fmt.Errorf("start the process that holds your labs: %w", err)
	}
	defer listener.Close()
	status, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close()
	defer write.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, HoldCommand...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + p.base}
	cmd.ExtraFiles = []*os.File{listener, write}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		Setsid:      true,
	}
	if err := cmd.Start(); err != nil {
		p.remove()
		return refused(err)
	}
	write.Close()
	text, err := io.ReadAll(status)
	if err == nil && len(text) == 0 {
		return cmd.Process.Release()
	}
	_ = cmd.Wait()
	p.remove()
	return errors.Join(err, refused(errors.New(string(text))))
}

// listen makes the socket in a directory of the user alone. One that is there is of a holder that was killed.
func (p paths) listen() (*os.File, error) {
	if err := os.MkdirAll(p.own, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(p.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(p.socket, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// remove takes away what is there without a lab.
func (p paths) remove() {
	for _, path := range []string{p.socket, p.labs, p.own} {
		_ = os.Remove(path) // no directory goes that has something in it
	}
}

// forbidding are the parameters by which a system refuses user namespaces, with the value that does, and one that does not.
// lab/rootless/allowed has the same.
var forbidding = []struct{ name, forbids, allows string }{
	{"user.max_user_namespaces", "0", "15000"},
	{"kernel.unprivileged_userns_clone", "0", "1"},
	{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"},
}

// refused says what to do where the system refuses the holder's namespaces.
func refused(err error) error {
	for _, p := range forbidding {
		value, readErr := os.ReadFile("/proc/sys/" + strings.ReplaceAll(p.name, ".", "/"))
		if errors.Is(readErr, fs.ErrPermission) || readErr == nil && strings.TrimSpace(string(value)) == p.forbids {
			return fmt.Errorf("a lab without root needs user namespaces, which this system forbids (%s=%s): "+
				"use root (sudo), or allow them to all users: sudo sysctl -w %[1]s=%[3]s", p.name, p.forbids, p.allows)
		}
	}
	return fmt.Errorf("a lab without root needs user namespaces, which this system or container forbids (%w): "+
		"use root (sudo), or allow them: a container needs --privileged", err)
}
