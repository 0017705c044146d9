package wire

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
)

// inNamespace calls f in a network namespace of its own.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root: network namespaces are the real thing that is tested")
		}
		t.Skip("needs root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and the namespace end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestErrors has the kernel refuse things: the errors say what.
func TestErrors(t *testing.T) {
	inNamespace(t, func() error {
		n, err := OpenNode()
		if err != nil {
			return err
		}
		defer n.Close()
		own := &Pod{conn: n.conn}
		veth := NewVeth(ipam.Owner{Container: "a", Dev: "eth0"}, nil, 1450)
		for what, err := range map[string]error{
			"delete lo: ":            n.DeleteLink("lo"),
			"find eth0 in the pod: ": own.Configure("eth0", nil, nil),
			"tell the bridge that 00:00:00:00:00:00 is at": n.LockPort(veth),
			"set net/ipv4/ip_forward to x: ":               writeSysctls([]netstate.Sysctl{{Name: "net/ipv4/nosuch"}, {Name: "net/ipv4/ip_forward", Value: "x"}}),
		} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("error %v, want %s", err, what)
			}
		}
		if err := n.DeleteLink("nosuch0"); err != nil {
			t.Errorf("delete what is not there: %v", err)
		}
		return nil
	})
}
