package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a program to start.
type Command struct {
	Path string
	Args []string // without the program's name
	Env  []string // the whole environment
	Log  string   // file that stdout and stderr are appended to
}

// Process is a process that outlives the one that started it. PID and Started together name it for good: a pid
// alone is used again by the kernel.
type Process struct {
	PID     int
	Started uint64 // clock ticks after boot, field 22 of /proc/PID/stat
	Log     string
}

// Start runs c in the namespace, in a session of its own.
func (h Host) Start(c Command) (Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Process{}, fmt.Errorf("open log of %s: %w", c.Path, err)
	}
	defer log.Close()
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = c.Env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The child is forked from the thread that is in the namespace, and inherits it.
	if err := h.Do(cmd.Start); err != nil {
		return Process{}, fmt.Errorf("start %s in %s: %w", c.Path, h.Name, err)
	}
	started, _, err := stat(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // reap it, if this process lives that long
	if err != nil {
		return Process{}, err
	}
	return Process{PID: cmd.Process.Pid, Started: started, Log: c.Log}, nil
}

// Running reports whether the process is there and neither a zombie (Z) nor just being reaped (X).
func (p Process) Running() bool {
	if p.PID == 0 {
		return false
	}
	started, state, err := stat(p.PID)
	return err == nil && started == p.Started && state != 'Z' && state != 'X'
}

// Stop ends the process with SIGTERM, and with SIGKILL what has not ended after grace. A process that is not
// running is success.
func (p Process) Stop(ctx context.Context, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := p.end(ctx, unix.SIGTERM); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return fmt.Errorf("process %d did not end within %v of SIGTERM and was killed: see %s", p.PID, grace, p.Log)
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p Process) Kill() error { return p.end(context.Background(), unix.SIGKILL) }

// Signal sends a signal. A process that is not running is success.
func (p Process) Signal(sig unix.Signal) error {
	return p.signal(sig, func(int) error { return nil })
}

// end sends a signal and waits until the process has ended.
func (p Process) end(ctx context.Context, sig unix.Signal) error {
	return p.signal(sig, func(fd int) error { return waitExit(ctx, fd) })
}

// signal sends a signal, and then calls f with the process's pidfd.
func (p Process) signal(sig unix.Signal, f func(fd int) error) error {
	if p.PID == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	// Only now, with the pid held, is the question whose it is answered for good.
	if !p.Running() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.PID, err)
	}
	return f(fd)
}

// waitExit returns when the process has ended; a pidfd is readable then, also for a zombie.
func waitExit(ctx context.Context, fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a process to end: %w", err)
		}
		if n > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// stat reads the start time and the state from /proc/PID/stat. The second field is the program's name in
// parentheses and can hold anything, so the fields are counted from the last parenthesis.
func stat(pid int) (started uint64, state byte, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("read process %d: %q has too few fields", pid, data)
	}
	started, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return started, fields[0][0], err
}
