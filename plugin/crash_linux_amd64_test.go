package plugin

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/plugin/ipam"
)

// TestKillAnywhere ends an ADD with SIGKILL after each of its system calls that change something on the
// machine. The DEL that a runtime then sends leaves nothing, and the pod can be added.
func TestKillAnywhere(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	killEverywhere(t, n, pod, n.config(nil), 1)
}

// TestKillAnywhereWithPorts does the same while host ports are set up.
func TestKillAnywhereWithPorts(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	every := 9
	if long {
		every = 1
	}
	killEverywhere(t, n, pod, n.config(runtimeConfig(hostPort)), every)
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
}

func killEverywhere(t *testing.T, n *node, pod string, conf []byte, every int) {
	calls := n.killAfter(n.command("ADD", "a", pod, conf), 1<<30) // which makes the bridge and is not killed
	n.must("DEL", "a", pod, n.config(nil))
	if len(calls) < 20 {
		t.Fatalf("an ADD made the changes %q, want at least twenty: the tracer misses some", calls)
	}
	for after := 1; after <= len(calls); after += every {
		made := n.killAfter(n.command("ADD", "a", pod, conf), after)
		n.must("DEL", "a", pod, n.config(nil))
		if n.mustBeClean(pod); t.Failed() {
			t.Fatalf("after the kill behind change %d of %q", after, made)
		}
	}
	for after := 1; after <= len(calls); after += 5 * every {
		n.killAfter(n.command("ADD", "a", pod, conf), after)
		n.must("ADD", "b", newNamespace(t), n.config(nil)) // nobody waits for a dead process
		n.must("DEL", "a", pod, n.config(nil))
		n.must("ADD", "a", pod, conf)
		n.must("DEL", "a", pod, n.config(nil))
		n.must("DEL", "b", "", n.config(nil))
		n.mustBeClean(pod)
	}
	t.Logf("killed behind each of %d changes: %s", len(calls), calls)
}

// TestKillDelAnywhere ends a DEL in the same way; the next one finishes the work.
func TestKillDelAnywhere(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	for after := 1; ; after++ {
		result := n.must("ADD", "a", pod, n.config(nil))
		made := n.killAfter(n.command("DEL", "a", pod, n.withPrev(result)), after)
		if len(made) < after {
			break
		}
		n.must("DEL", "a", "", n.config(nil))
		if n.mustBeClean(pod); t.Failed() {
			t.Fatalf("after the kill behind change %d of %q", after, made)
		}
	}
	n.must("DEL", "a", pod, n.config(nil))
}

// killAfter runs a command and kills it when it has made so many changes; it says which it made.
func (n *node) killAfter(c *exec.Cmd, changes int) (made []string) {
	n.t.Helper()
	var stdout bytes.Buffer
	c.Stdout = &stdout
	// Its own process group is what the tracer waits for; the go tool's other children are not its business.
	c.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	inside(n.t, n.ns, func() error {
		if err := c.Start(); err != nil {
			return err
		}
		tr := tracer{group: c.Process.Pid, entered: map[int]bool{}, pending: map[int]string{}}
		err := tr.run(changes)
		made = tr.made
		_ = c.Process.Release()
		return err
	})
	return made
}

// tracer follows all threads of a process from system call to system call.
type tracer struct {
	group   int
	entered map[int]bool   // by thread: inside a call
	pending map[int]string // by thread: the changing call that it is in
	made    []string
}

// run is called on the thread that started the process, which alone may trace it.
func (tr *tracer) run(changes int) error {
	runtime.LockOSThread()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(tr.group, &status, syscall.WALL, nil); err != nil {
		return fmt.Errorf("wait for the process to start: %w", err)
	}
	if err := syscall.PtraceSetOptions(tr.group,
		unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("trace the process: %w", err)
	}
	if err := syscall.PtraceSyscall(tr.group, 0); err != nil {
		return err
	}
	for {
		tid, err := syscall.Wait4(-tr.group, &status, syscall.WALL, nil)
		if err == syscall.EINTR {
			continue
		}
		if err == syscall.ECHILD {
			return nil // all threads are gone
		}
		if err != nil {
			return fmt.Errorf("wait for the process: %w", err)
		}
		if !status.Stopped() {
			continue
		}
		signal := status.StopSignal()
		if signal == syscall.SIGTRAP|0x80 {
			tr.call(tid)
		}
		if len(tr.made) >= changes {
			_ = syscall.Kill(tr.group, syscall.SIGKILL)
		}
		if signal == syscall.SIGTRAP|0x80 || signal == syscall.SIGTRAP || signal == syscall.SIGSTOP {
			signal = 0
		}
		_ = syscall.PtraceSyscall(tid, int(signal)) // or it is dead already
	}
}

// call notes the beginning or the end of a system call.
func (tr *tracer) call(tid int) {
	if tr.entered[tid] {
		if name := tr.pending[tid]; name != "" {
			tr.made = append(tr.made, name)
		}
		delete(tr.entered, tid)
		delete(tr.pending, tid)
		return
	}
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) != nil {
		return
	}
	tr.entered[tid] = true
	tr.pending[tid] = changing(tid, &regs)
}

// changing names the call if it can change something outside the process, and is empty otherwise.
func changing(tid int, regs *syscall.PtraceRegs) string {
	file := func() string {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, regs.Rdi))
		return path
	}
	switch regs.Orig_rax {
	case unix.SYS_LINK, unix.SYS_LINKAT:
		return "link"
	case unix.SYS_UNLINK, unix.SYS_UNLINKAT:
		return "unlink"
	case unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return "rename"
	case unix.SYS_MKDIR, unix.SYS_MKDIRAT:
		return "mkdir"
	case unix.SYS_FLOCK:
		return "flock"
	case unix.SYS_OPENAT:
		if regs.Rdx&(unix.O_CREAT|unix.O_TRUNC) != 0 {
			return "create"
		}
	case unix.SYS_WRITE:
		if path := file(); strings.HasPrefix(path, "/") || regs.Rdi == 1 {
			return "write"
		}
	case unix.SYS_SENDTO, unix.SYS_SENDMSG:
		return "netlink"
	case unix.SYS_CLONE, unix.SYS_CLONE3:
		if regs.Rdi&unix.CLONE_VFORK != 0 {
			return "start"
		}
	}
	return ""
}

// TestKillTearsNoPower holds what a power loss can do to a file that was not synced: it is empty. Nothing of
// a store with only empty files is in the way of a pod.
func TestKillTearsNoPower(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	n.must("ADD", "a", pod, n.config(runtimeConfig(map[string]any{"ips": []string{"10.244.1.7"}})))
	deleteLink(t, pod, "eth0")
	for name := range n.reserved() {
		if err := os.Truncate(n.storeDir()+"/"+name, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"last_reserved_ip.0",
		indexDir + "/" + filepath.Base(ipam.Store(n.storeDir()).Record(ipam.Owner{Container: "a", Dev: "eth0"}))} {
		if err := os.WriteFile(n.storeDir()+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.must("DEL", "a", "", n.config(nil))
	conf := n.config(runtimeConfig(map[string]any{"ips": []string{"10.244.1.7"}}))
	n.must("DEL", "b", pod, n.withPrev(n.must("ADD", "b", pod, conf)))
	n.must("DEL", "b", pod, n.config(nil))
}
