package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestOneProcess: with the conflist of the manifest a pod without host ports costs one process at ADD and one
// at DEL.
func TestOneProcess(t *testing.T) {
	shipped := shippedPlugin(t)
	for name, c := range map[string]struct {
		runtimeConfig map[string]any
		want          string // a program that is run too; empty: none
	}{
		"no ports":      {map[string]any{}, ""},
		"an empty list": {map[string]any{"portMappings": []any{}, "bandwidth": nil}, ""},
		"a host port":   {hostPort, "portmap"},
		"a bandwidth cap": {map[string]any{"bandwidth": map[string]int{"ingressRate": 1 << 20,
			"ingressBurst": 1 << 20}}, "bandwidth"},
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t, envDual), newNamespace(t)
			extra := map[string]any{"runtimeConfig": c.runtimeConfig}
			for k, v := range shipped {
				extra[k] = v
			}
			for _, verb := range []string{"ADD", "DEL"} {
				programs := n.programs(n.command(verb, "a", pod, n.config(extra)))
				if c.want == "" && len(programs) > 0 || c.want != "" && !slices.Contains(programs, c.want) {
					t.Errorf("%s ran %q beside twill, want %q", verb, programs, c.want)
				}
			}
			n.mustBeClean(pod)
		})
	}
}

// shippedPlugin is the only plugin of the manifest's conflist.
func shippedPlugin(t *testing.T) map[string]any {
	t.Helper()
	data, err := os.ReadFile("../deploy/base/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Data map[string]string }
	var list struct{ Plugins []map[string]any }
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(object.Data["cni-conf.json"]), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 1 {
		t.Fatalf("the conflist has the plugins %v: a runtime starts each for every pod, want one", list.Plugins)
	}
	return list.Plugins[0]
}

// programs runs a command and says which programs it and its children started, by the names of their files.
func (n *node) programs(c *exec.Cmd) (names []string) {
	n.t.Helper()
	var stdout bytes.Buffer
	c.Stdout = &stdout
	c.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	inside(n.t, n.ns, func() error {
		if err := c.Start(); err != nil {
			return err
		}
		defer func() { _ = c.Process.Release() }()
		var err error
		names, err = watchExec(c.Process.Pid)
		return err
	})
	if bytes.Contains(stdout.Bytes(), []byte(`"code"`)) {
		n.t.Fatalf("%s: %s", c.Env[0], stdout.String())
	}
	return names
}

// watchExec follows a process that stands at its beginning, all its threads and children, and names what they
// execute.
func watchExec(pid int) (names []string, err error) {
	runtime.LockOSThread() // only the thread that started it may trace it
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil {
		return nil, fmt.Errorf("wait for the process to start: %w", err)
	}
	const follow = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, follow); err != nil {
		return nil, fmt.Errorf("trace the process: %w", err)
	}
	for tid := pid; ; {
		if err := syscall.PtraceCont(tid, deliver(status)); err != nil && err != syscall.ESRCH {
			return names, fmt.Errorf("let %d go on: %w", tid, err)
		}
		for {
			tid, err = syscall.Wait4(-1, &status, syscall.WALL|unix.WNOTHREAD,
				nil) // what this thread traces, and nothing else
			if err == syscall.ECHILD {
				return names, nil // all are gone
			}
			if err == nil && status.Stopped() {
				break
			}
			if err != nil && err != syscall.EINTR {
				return names, fmt.Errorf("wait for the process: %w", err)
			}
		}
		if status.TrapCause() == unix.PTRACE_EVENT_EXEC {
			path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", tid))
			if err != nil {
				return names, err
			}
			names = append(names, filepath.Base(path))
		}
	}
}

// deliver is the signal that a stopped thread was about to get; stops of the tracer's own are none.
func deliver(status syscall.WaitStatus) int {
	if s := status.StopSignal(); s != syscall.SIGTRAP && s != syscall.SIGSTOP {
		return int(s)
	}
	return 0
}
