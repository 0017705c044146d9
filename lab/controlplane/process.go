package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

	ended chan struct{} // closed when a child has ended; nil for one that is not our child
}

type processConfig struct {
	path      string
	args      []string
	log       string // appended to; takes stdout and stderr
	detach    bool   // a session of its own, so that no signal to ours reaches it
	pdeathsig bool
}

func startProcess(cfg processConfig) (*process, error) {
	log, err := os.OpenFile(cfg.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(cfg.path, cfg.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: cfg.detach}
	p := &process{ended: make(chan struct{})}
	if cfg.pdeathsig {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		err = p.startOnOwnThread(cmd)
	} else if err = cmd.Start(); err == nil {
		go p.wait(cmd)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.path, err)
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

// stop ends the process and returns when it is gone. Absence is success.
func (p *process) stop(grace time.Duration) error {
	for _, s := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, 5 * time.Second}} {
		if !p.alive() {
			return nil
		}
		if err := syscall.Kill(p.Pid, s.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("send %v to process %d: %w", s.signal, p.Pid, err)
		}
		if p.waitGone(s.wait) {
			return nil
		}
	}
	return fmt.Errorf("process %d survived SIGKILL", p.Pid)
}

func (p *process) waitGone(limit time.Duration) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for p.alive() {
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
