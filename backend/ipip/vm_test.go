//go:build vm

package ipip

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/subnet"
)

func host(n int) subnet.Lease {
	return lease(fmt.Sprintf("n%d", n), stack(fmt.Sprintf("10.244.%d.0/24", n), fmt.Sprintf("192.0.2.%d", n)),
		stack(fmt.Sprintf("fc00:0:0:%d::/64", n), fmt.Sprintf("2001:db8::%d", n)))
}

func run(line string) error {
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// node brings this thread's namespace to what the backend wants of node n, whose underlay is dev.
func node(n, other int, dev string) error {
	for _, line := range []string{fmt.Sprintf("ip addr add 192.0.2.%d/24 dev %s", n, dev), fmt.Sprintf("ip addr add 2001:db8::%d/64 dev %s nodad", n, dev),
		"ip link set lo up", "ip link set " + dev + " up"} {
		if err := run(line); err != nil {
			return err
		}
	}
	b, _, err := New(networks, nil)
	if err != nil {
		return err
	}
	facts := backend.Node{Underlays: []backend.Underlay{{Dev: dev, Local: host(n).Stacks[0].Underlay, MTU: 1500},
		{Dev: dev, Local: host(n).Stacks[1].Underlay, MTU: 1500}}}
	want, skips := b.Desired(facts, subnet.Snapshot{Local: host(n), Peers: []subnet.Lease{host(other)}})
	k, err := kernel.New(nil)
	if err != nil || len(skips) > 0 {
		return fmt.Errorf("skips %v: %w", skips, err)
	}
	defer k.Close()
	have, err := k.Observe(context.Background(), want)
	if err != nil {
		return err
	}
	return k.Apply(context.Background(), netstate.Diff(want, have))
}

// TestPackets sends between two nodes of a kernel that has ipip, with the longest packets that fit and longer ones.
func TestPackets(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test, and its namespace too
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	tid, ready, done := make(chan int), make(chan bool), make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		tid <- unix.Gettid()
		<-ready
		if err == nil {
			err = node(2, 1, "u0p")
		}
		done <- err
		<-ready // the namespace lasts as long as this thread
	}()
	defer close(ready)
	for _, line := range []string{"ip link add u0 type veth peer name u0p", fmt.Sprintf("ip link set u0p netns %d", <-tid)} {
		if err := run(line); err != nil {
			t.Fatal(err)
		}
	}
	ready <- true
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := node(1, 2, "u0"); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ping -c 3 -W 5 10.244.2.0", "ping -c 1 -W 5 -M do -s 1452 10.244.2.0", "ping -c 1 -W 5 -s 3000 10.244.2.0",
		"ping -c 3 -W 5 fc00:0:0:2::", "ping -c 1 -W 5 -M do -s 1412 fc00:0:0:2::", "ping -c 1 -W 5 -s 3000 fc00:0:0:2::"} {
		if err := run(line); err != nil {
			t.Error(err)
		}
	}
	for line, mtu := range map[string]string{"ping -c 1 -W 2 -M do -s 1453 10.244.2.0": "mtu=1480", "ping -c 1 -W 2 -M do -s 1413 fc00:0:0:2::": "mtu: 1460"} {
		if err := run(line); err == nil || !strings.Contains(err.Error(), mtu) {
			t.Errorf("%s, longer than the %s: %v", line, mtu, err)
		}
	}
}
