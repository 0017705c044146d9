package unusual

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// inNamespace runs do on a thread in a new network namespace, with lo up. The namespace goes with the thread.
func inNamespace(t testing.TB, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make a network namespace: %v", err)
			return
		}
		if err := run("ip link set lo up"); err != nil {
			t.Error(err)
			return
		}
		do()
	}()
	<-done
}

// run runs a line of a shell in the thread's namespace.
func run(line string) error {
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// bridged gives the thread's namespace a bridge, and two pods, whose processes it returns.
func bridged(t testing.TB) (pods []int) {
	for _, line := range []string{
		"ip link add unusualbr type bridge", "ip link set unusualbr up", "ip addr add 10.244.1.1/24 dev unusualbr",
		"ip addr add fd00:244:1::1/64 dev unusualbr nodad",
	} {
		if err := run(line); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"unusual1", "unusual2"} {
		pod := pod(t)
		pods = append(pods, pod)
		for _, line := range []string{
			fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", name, pod),
			fmt.Sprintf("ip link set %s master unusualbr up", name),
			fmt.Sprintf("nsenter -t %d -n sh -c 'ip link set lo up; ip link set eth0 up; ip addr add 10.244.1.%d/24 dev eth0'", pod, i+2),
		} {
			if err := run(line); err != nil {
				t.Fatal(err)
			}
		}
	}
	settled(t)
	return pods
}

// pod returns a process in a namespace of its own.
func pod(t testing.TB) int {
	c := exec.Command("sleep", "600")
	c.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

// settled waits until duplicate address detection is over.
func settled(t testing.TB) {
	t.Helper()
	testwait.Nil(t, "no address is tentative", func() error {
		out, err := exec.Command("ip", "-6", "addr", "show", "tentative").Output()
		if err == nil && len(out) > 0 {
			err = errors.New(string(out))
		}
		return err
	})
}

func list(t testing.TB) []locate.Object {
	t.Helper()
	all, unread := List(context.Background())
	if f, err := reference(); err == nil && f.release != "" && len(unread) > 0 && unread[len(unread)-1] == f.note() {
		unread = unread[:len(unread)-1]
	}
	if len(unread) > 0 {
		t.Errorf("unread: %q", unread)
	}
	for _, o := range all {
		if !isToldByFields(o) {
			t.Errorf("judgements read fields, which do not have what the text says: %+v", o)
		}
	}
	return all
}

// isToldByFields reports whether an object's fields have what its text says to people.
func isToldByFields(o locate.Object) bool {
	value := strings.TrimSpace(o.Part + " " + o.Value)
	switch o.Kind {
	case locate.Sysctl:
		return o.Text == o.Part+" = "+o.Value && o.Key != netstate.Key{}
	case locate.Link:
		return strings.HasSuffix(o.Text, ": "+value)
	case locate.BridgePort:
		return strings.HasPrefix(o.Text, o.Dev+" of "+o.Bridge+": "+value) || strings.HasPrefix(o.Text, o.Dev+": "+value)
	case locate.Neighbour, locate.FDB:
		return o.Part == "" && strings.Contains(o.Text, o.MAC) && o.Key != netstate.Key{}
	case locate.PolicyRule:
		return true
	}
	return o.Part != "" || o.Kind == locate.Address
}

// without returns the objects of all that are not in before.
func without(all, before []locate.Object) []locate.Object {
	return slices.DeleteFunc(slices.Clone(all), func(o locate.Object) bool { return slices.Contains(before, o) })
}

func print(all []locate.Object) string {
	var b strings.Builder
	for _, o := range all {
		fmt.Fprintf(&b, "%s | %s | %s | usual %s | %s | %s\n", o.Kind, o.Dev, o.Text, o.Usual, o.Fix, o.About)
	}
	return b.String()
}
