package delegate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Limits, variables for tests. portmap runs iptables some twenty times, each of which may wait for
// kube-proxy; runtimes give up after two to four minutes.
var (
	ProgramTimeout = 40 * time.Second // that one program may take
	TurnTimeout    = 60 * time.Second // that one pod's may wait for other pods'
)

var errTimeout = errors.New("it took too long")

// runBounded runs a program and what that starts, for ProgramTimeout at most, and returns what it printed.
func runBounded(ctx context.Context, c *exec.Cmd) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ProgramTimeout,
		fmt.Errorf("%w and was stopped after %s", errTimeout, ProgramTimeout))
	defer cancel()
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaint
	// A group of its own, so that what it started ends with it. It is killed with this process, or it would
	// go on while the runtime deletes the pod; the kernel means the thread.
	c.SysProcAttr, c.WaitDelay = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}, 5*time.Second
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	err = c.Wait()
	if stop(); ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return out.Bytes(), complaint.Bytes(), err
}
