package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/examples"
)

// nobody is the user without any rights.
const nobody = 65534

// user runs twillctl without root, with a runtime directory of its own.
type user struct {
	t       *testing.T
	program string
	runtime string
}

func newUser(t *testing.T) user {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test becomes another user: it needs root")
	}
	program, _ := build(t)
	dir := open(t, filepath.Dir(program))
	for _, name := range []string{"twilld", "twill"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "bin", name))
		if err != nil {
			t.Fatalf("%v: make build", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	u := user{t, program, open(t, t.TempDir())}
	if err := os.Chown(u.runtime, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // of a test that failed
		for _, p := range u.holders() {
			if err := p.Kill(); err != nil {
				t.Error(err)
			}
		}
	})
	return u
}

// command is a call of twillctl.
func (u user) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(u.t.Context(), u.program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + u.runtime}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

// try returns what a call prints, and its exit code.
func (u user) try(args ...string) (string, int) {
	u.t.Helper()
	cmd := u.command(args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		u.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// want calls twillctl, which must print a text and exit with a code.
func (u user) want(code int, text string, args ...string) {
	u.t.Helper()
	if out, got := u.try(args...); got != code || !strings.Contains(out, text) {
		u.t.Fatalf("%v: exit code %d, want %d and %q in\n%s", args, got, code, text, out)
	}
}

// holders are the processes that hold labs of this runtime directory.
func (u user) holders() []host.Process {
	u.t.Helper()
	all, err := host.FindMarked("XDG_RUNTIME_DIR=" + u.runtime)
	if err != nil {
		u.t.Fatal(err)
	}
	return all
}

// ends waits until nothing is left of the user's labs: no process and no file.
func (u user) ends() {
	u.t.Helper()
	testwait.Nil(u.t, "the user's labs end", func() error {
		entries, err := os.ReadDir(u.runtime)
		if left := u.holders(); err == nil && len(entries)+len(left) > 0 {
			err = fmt.Errorf("left behind: %v, processes %v", entries, left)
		}
		return err
	})
}

// TestOrdinaryUser: a lab without root comes up, later commands join it, and nothing is left of it.
func TestOrdinaryUser(t *testing.T) {
	u := newUser(t)
	named := func(args ...string) []string { return append([]string{"lab", "--name", "nobodys"}, args...) }
	u.want(0, "nobodys", named("up", "--nodes", "2", "--pods", "1", "--store", "file")...)
	u.want(0, "node2/pod1", named("ping")...)
	u.want(0, "", "doctor", "--lab", "nobodys")
	u.want(0, "flannel.1", named("exec", "node1", "--", "ip", "route")...)
	u.want(7, "", named("exec", "node1", "--", "sh", "-c", "exit 7")...)
	u.want(2, `lab nobodys has no host "node9"`, named("exec", "node9", "true")...)
	if places, _ := filepath.Glob(filepath.Join(host.Dir, "nobodys-*")); len(places) > 0 {
		t.Errorf("the machine has %v", places)
	}
	if _, err := lab.Open("", "nobodys"); err == nil {
		t.Error("root has a lab of that name")
	}
	t.Run("Input", func(t *testing.T) {
		cmd := u.command(named("exec", "node1", "--", "wc", "-c")...)
		cmd.Stdin = strings.NewReader("four")
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "4" {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("Signals", func(t *testing.T) { signals(t, u, named) })
	u.want(0, "lab nobodys is removed", named("down")...)
	u.ends()
	u.want(0, "is not there: nothing to remove", named("down")...)
	u.want(2, "there is no such lab", named("ping")...)
}

// signals: a command ends with its client, by whatever signal.
func signals(t *testing.T, u user, named func(...string) []string) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd := u.command(named("exec", "node1", "--", "sh", "-c", "echo here; exec sleep 4242")...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		testwait.Until(t, fmt.Sprintf("the command ends after %v to its client", s), func() bool {
			return exec.Command("pgrep", "-u", strconv.Itoa(nobody), "-f", "^sleep 4242").Run() != nil
		})
	}
}

// TestHolderKilled: the namespaces end with their holder, the next command says so, and what is left is removed.
func TestHolderKilled(t *testing.T) {
	u := newUser(t)
	up := []string{"lab", "up", "--nodes", "1", "--pods", "1", "--store", "file"}
	u.want(0, "", up...)
	for _, p := range u.holders() {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	u.want(2, "is gone or hidden by another mount: twillctl lab up makes the lab anew", "lab", "status")
	u.want(0, "removed what an earlier run had left", up...)
	u.want(2, "lab twill is up with other settings", "lab", "up", "--nodes", "2", "--store", "file")
	u.want(2, "the fast path needs root (sudo): the kernel takes eBPF programs from nobody else", "lab", "up", "--name", "fast", "--fast-path", "--store", "file")
	u.want(0, "lab twill is removed", "lab", "down")
	u.ends()
}

// TestPageOfOrdinaryUser: the page is served where the browser is.
func TestPageOfOrdinaryUser(t *testing.T) {
	u := newUser(t)
	u.want(0, "", "lab", "up", "--nodes", "1", "--pods", "1", "--store", "file")
	cmd := u.command("ui", "--open=false")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for !strings.Contains(text.String(), "Ctrl-C") {
		part := make([]byte, 512)
		n, err := out.Read(part)
		if text.Write(part[:n]); err != nil {
			t.Fatalf("%v: %s", err, &text)
		}
	}
	url := strings.Fields(strings.SplitAfter(text.String(), "\n")[1])[0]
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", url, resp.Status)
	}
	if !strings.HasPrefix(text.String(), "The lab twill is shown at") {
		t.Errorf("got %s", &text)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	u.want(0, "lab twill is removed", "lab", "down")
	u.ends()
}

// onlyRoot are the scripts that an ordinary user cannot run, and what they say.
var onlyRoot = map[string]string{
	"fast-path":   "the fast path needs root (sudo): the kernel takes eBPF programs from nobody else",
	"tx-checksum": "a network card that breaks checksums needs root (sudo): the kernel takes eBPF programs from nobody else",
}

// closed makes the machine one whose root has CNI plugins, and lets nobody else look at what they keep.
const closed = "mount -t tmpfs tmpfs /var/lib; mkdir -m 700 /var/lib/cni; mkdir /var/lib/cni/flannel; "

// TestScriptsOfOrdinaryUser runs every script that comes with Twill without root. Udev lets everybody open /dev/net/tun,
// which the agent of a kernel without WireGuard needs.
func TestScriptsOfOrdinaryUser(t *testing.T) {
	testall.Needs(t, "some minutes, and a built kube-apiserver")
	u := newUser(t)
	kube, err := filepath.Abs("../../bin/kube")
	if err != nil {
		t.Fatal(err)
	}
	tun := filepath.Join(filepath.Dir(u.program), "tun")
	if err := unix.Mknod(tun, unix.S_IFCHR, int(unix.Mkdev(10, 200))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tun, 0o666); err != nil {
		t.Fatal(err)
	}
	names, err := examples.Names()
	if err != nil {
		t.Fatal(err)
	}
	if len(onlyRoot) > 3 {
		t.Errorf("%d scripts need root: want three at most", len(onlyRoot))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec",
				fmt.Sprintf("mount --bind %s /dev/net/tun; "+closed+"exec setpriv --reuid=%d --regid=%[2]d --clear-groups \"$@\"", tun, nobody),
				"sh", u.program, "lab", "run", "-v", "--patience", testwait.Limit.String(), "--timeout", "10m", name)
			cmd.Env = append(u.command().Env, "TWILL_KUBE_BIN="+kube)
			out, err := cmd.CombinedOutput()
			if refusal, ok := onlyRoot[name]; ok {
				if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), refusal) {
					t.Errorf("%v, want %q in\n%s", err, refusal, out)
				}
				return
			}
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestRefused: where the system lets nobody have user namespaces, one sentence says so, before anything is compiled.
func TestRefused(t *testing.T) {
	u := newUser(t)
	const sentence = "a lab without root needs user namespaces, which this system forbids (user.max_user_namespaces=0): " +
		"use root (sudo), or allow them to all users: sudo sysctl -w user.max_user_namespaces=15000\n"
	allowed, err := os.ReadFile("../../lab/rootless/allowed")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(filepath.Dir(u.program), "allowed")
	if err := os.WriteFile(script, allowed, 0o755); err != nil {
		t.Fatal(err)
	}
	for want, command := range map[string]string{"twillctl: " + sentence: u.program + " lab up", sentence: script} {
		// The limit is that of a user namespace: this one forbids those below it.
		cmd := exec.CommandContext(t.Context(), "sh", "-ec",
			fmt.Sprintf("echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --reuid=%d --regid=%[1]d --clear-groups %s", nobody, command))
		cmd.Env = u.command().Env
		all := []syscall.SysProcIDMap{{Size: 65536}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true}
		out, err := cmd.CombinedOutput()
		if err == nil || string(out) != want {
			t.Errorf("%s: %v, want %q, got\n%s", command, err, want, out)
		}
	}
}
