package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a child of ours, or one of an earlier run that a state file told of. The start time tells it from a
// later process with the same pid.
type process struct {
	Pid     int    `json:"pid"`
	Started string `json:"started"` // /proc/PID/stat: clock ticks after boot

	log   string        // of a child
	ended chan struct{} // closed when a child has ended; nil for one that is not our child
}

// startProcess starts a command, whose output is appended to the log. The kernel kills it when this program
// ends, however that happens.
func startProcess(command []string, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{log: log, ended: make(chan struct{})}
	if err := p.startOnOwnThread(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	p.Pid = cmd.Process.Pid
	p.Started, _ = startTime(p.Pid) // it can have ended already, which its waiter will say
	return p, nil
}

// startOnOwnThread starts the child from a thread that lives as long as the child: the kernel sends the parent
// death signal when the thread that forked ends, and a test that leaves a network namespace ends threads.
func (p *process) startOnOwnThread(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.wait(cmd)
		}
	}()
	return <-started
}

func (p *process) wait(cmd *exec.Cmd) {
	cmd.Wait() // how it ended stands in its log
	close(p.ended)
}

// alive is false for a zombie too: its parent may be a program that does not wait for it.
func (p *process) alive() bool {
	started, ok := startTime(p.Pid)
	return ok && started == p.Started
}

// await returns nil once ready does, and an error when the child ends before.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		name := strings.TrimSuffix(filepath.Base(p.log), ".log")
		select {
		case <-tick.C:
		case <-p.ended:
			return fmt.Errorf("%s ended before it was ready:\n%s", name, tail(p.log, 5))
		case <-ctx.Done():
			return fmt.Errorf("wait for %s (%w): %w", name, err, ctx.Err())
		}
	}
}

// stop ends the process with SIGTERM, and with SIGKILL what has not ended after grace. Absence is success.
func (p *process) stop(grace time.Duration) error {
	if gone, err := p.signal(syscall.SIGTERM, grace); gone || err != nil {
		return err
	}
	return p.kill()
}

// kill ends the process with SIGKILL and returns when it is gone. Absence is success.
func (p *process) kill() error {
	gone, err := p.signal(syscall.SIGKILL, 5*time.Second)
	if err == nil && !gone {
		err = fmt.Errorf("process %d survived SIGKILL", p.Pid)
	}
	return err
}

// signal reports whether the process is gone within the limit.
func (p *process) signal(s syscall.Signal, limit time.Duration) (gone bool, err error) {
	if p.gone() {
		return true, nil
	}
	if err := syscall.Kill(p.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, fmt.Errorf("send %v to process %d: %w", s, p.Pid, err)
	}
	return p.waitGone(limit), nil
}

// gone reports whether the process has ended. The threads of a zombie can still hold its sockets, so a child is gone
// only when it has been waited for.
func (p *process) gone() bool {
	if p.ended == nil {
		return !p.alive()
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) waitGone(limit time.Duration) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for !p.gone() {
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
	return true
}

// startTime reads field 22 of /proc/PID/stat. The name in field 2 may hold blanks and parentheses, so counting
// starts behind the last one.
func startTime(pid int) (string, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return "", false
	}
	return fields[19], true
}

// tail returns the last lines of a log, for errors: why a program ended stands at the end of what it said.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
