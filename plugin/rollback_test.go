package plugin

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// TestRollback fails an ADD, or stops it, after each of its real steps: nothing may be left, and the next ADD
// has to succeed.
func TestRollback(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	args := &skel.CmdArgs{ContainerID: "a", Netns: pod, IfName: "eth0", StdinData: n.config(nil)}
	steps := 0
	for after := 0; after == 0 || after < steps; after++ {
		for name, bad := range map[string]func(context.CancelFunc) error{
			"error":  func(context.CancelFunc) error { return errors.New("broken on purpose") },
			"signal": func(cancel context.CancelFunc) error { cancel(); return nil },
			"panic":  func(context.CancelFunc) error { panic("broken on purpose") },
		} {
			inside(t, n.ns, func() error {
				a, err := begin(args)
				if err != nil {
					return err
				}
				defer a.close()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				all := a.steps()
				all = all[:len(all)-1] // all but the result
				steps = len(all) + 1
				failing := step{do: func(context.Context) error { return bad(cancel) }}
				last := step{do: func(context.Context) error { return nil }}
				if err := run(ctx, append(append(all[:after:after], failing),
					append(all[after:], last)...)); err == nil {
					t.Errorf("%s after step %d: no error", name, after)
				}
				return nil
			})
			n.mustBeClean(pod)
		}
	}
	n.must("ADD", "a", pod, n.config(nil))
}

// TestRollbackOfRealFaults has the kernel or the node refuse something in the middle of an ADD.
func TestRollbackOfRealFaults(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		code       uint
		prepare    func(t *testing.T, n *node)
		extra      map[string]any
	}{
		{"the bridge is something else", "cni0 is a veth device: want a bridge", 7, func(t *testing.T, n *node) {
			addLink(t, n.ns, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}, PeerName: "cni1"})
		}, nil},
		{"the host's end exists", "make veth pair", 999, func(t *testing.T, n *node) {
			addLink(t, n.ns, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"})}})
		}, nil},
		{"the bridge's address is refused", "add address ff02::1/64", 999, func(*testing.T, *node) {},
			map[string]any{"ipam": map[string]any{"ranges": [][]map[string]string{{{"subnet": "ff02::/64"}}}}}},
		{"a route is refused", "want a gateway inside the pod's own subnet", 999, func(*testing.T, *node) {},
			map[string]any{"ipam": map[string]any{"routes": []map[string]string{{"dst": "192.0.2.0/24",
				"gw": "198.51.100.1"}}}}},
		{"the second family is full", "all 1 addresses of fd00::/64", 11, func(t *testing.T, n *node) {
			n.must("ADD", "other", newNamespace(t), n.config(map[string]any{"ipam": tightRanges(n)}))
		}, map[string]any{"ipam": map[string]any{"ranges": tightRanges(nil)["ranges"]}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t, envV4), newNamespace(t)
			tt.prepare(t, n)
			before := n.reserved()
			extra := tt.extra
			if ipam, ok := extra["ipam"].(map[string]any); ok {
				ipam["dataDir"] = n.dir + "/networks"
			}
			n.mustFail(tt.code, tt.want, "ADD", "a", pod, n.config(extra))
			if after := n.reserved(); len(after) != len(before) {
				t.Errorf("reservations %q, want %q as before", after, before)
			}
			if link, _ := netlinkIn(t, pod).LinkByName("eth0"); link != nil {
				t.Errorf("eth0 is left in the pod")
			}
			if link, _ := netlinkIn(t, n.ns).LinkByName("cni0"); link != nil &&
				strings.HasPrefix(tt.name, "the bridge's") {
				t.Errorf("half a bridge is left on the node")
			}
			if link, _ := netlinkIn(t,
				n.ns).LinkByName(wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"})); link != nil &&
				link.Type() == "veth" {
				t.Errorf("%s is left on the node", link.Attrs().Name)
			}
		})
	}
}

func addLink(t *testing.T, ns string, link netlink.Link) {
	t.Helper()
	if err := netlinkIn(t, ns).LinkAdd(link); err != nil {
		t.Fatal(err)
	}
}

// tightRanges has room for many IPv4 pods and one IPv6 pod.
func tightRanges(n *node) map[string]any {
	ipam := map[string]any{"ranges": [][]map[string]string{
		{{"subnet": "10.244.1.0/24"}}, {{"subnet": "fd00::/64", "rangeStart": "fd00::2", "rangeEnd": "fd00::2"}}}}
	if n != nil {
		ipam["dataDir"] = n.dir + "/networks"
	}
	return ipam
}

// TestNobodyReadsTheResult closes the plugin's standard output before it can write: the runtime died.
func TestNobodyReadsTheResult(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	c := n.command("ADD", "a", pod, n.config(nil))
	c.Stdout = w
	inside(t, n.ns, c.Start)
	_ = w.Close()
	if err := c.Wait(); err == nil {
		t.Error("ADD succeeded though nobody could read its result")
	}
	n.mustBeClean(pod)
}

// TestSignal stops a real ADD while it waits for the store's lock.
func TestSignal(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	s, err := ipam.Store(n.storeDir()).Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	c := n.command("ADD", "a", pod, n.config(nil))
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	inside(t, n.ns, c.Start)
	waitsForLock(t, c.Process.Pid)
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	reply := n.reply(c.Wait(), &stdout, &stderr)
	_ = s.Close()
	if reply.failed == nil || !strings.Contains(reply.failed.Msg, "stopped by a signal") {
		t.Errorf("reply %s, want one that says that a signal stopped it", reply.stdout)
	}
	n.mustBeClean(pod)
}

// waitsForLock returns when some lock is waited for by the process (/proc/locks marks such a line with "->").
func waitsForLock(t *testing.T, pid int) {
	t.Helper()
	testwait.Until(t, "the plugin waits for the lock", func() bool {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(locks)) {
			f := strings.Fields(line)
			if len(f) > 5 && f[1] == "->" && f[5] == strconv.Itoa(pid) {
				return true
			}
		}
		return false
	})
}

// TestSignalAnywhere sends SIGTERM at many moments of an ADD: the runtime gets a result and the pod has its
// network, or it gets none and nothing is left.
func TestSignalAnywhere(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	results := 0
	for i := range 60 {
		c := n.command("ADD", "a", pod, n.config(nil))
		var stdout bytes.Buffer
		c.Stdout = &stdout
		inside(t, n.ns, c.Start)
		stop := time.AfterFunc(time.Duration(i)*300*time.Microsecond, func() { _ = c.Process.Signal(syscall.SIGTERM) })
		err := c.Wait()
		stop.Stop() // it is done already
		if err == nil {
			results++
			n.must("CHECK", "a", pod, n.withPrev(stdout.Bytes()))
			n.must("DEL", "a", pod, n.withPrev(stdout.Bytes()))
		}
		n.mustBeClean(pod)
	}
	t.Logf("%d of 60 pods got their network before the signal", results)
}
