//go:build vm

package wireguard

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/subnet"
)

func run(lines ...string) error {
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// flannel makes this thread's namespace what flannel makes of node 2: the kernel's WireGuard.
func flannel(ours, psk, own wgtypes.Key) error {
	if err := run("ip addr add 192.0.2.2/24 dev u0p", "ip link set u0p up", "ip link set lo up", "ip link add flannel-wg mtu 1420 type wireguard"); err != nil {
		return err
	}
	c, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer c.Close()
	port, allowed := 51820, net.IPNet{IP: net.IPv4(10, 244, 1, 0).To4(), Mask: net.CIDRMask(24, 32)}
	if err := c.ConfigureDevice("flannel-wg", wgtypes.Config{PrivateKey: &own, ListenPort: &port, Peers: []wgtypes.PeerConfig{{PublicKey: ours,
		PresharedKey: &psk, Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port}, AllowedIPs: []net.IPNet{allowed}}}}); err != nil {
		return err
	}
	return run("ip addr add 10.244.2.0/32 dev flannel-wg", "ip link set flannel-wg up", "ip route add 10.244.0.0/16 dev flannel-wg")
}

// TestKernelPeer talks to a node whose WireGuard is the kernel's.
func TestKernelPeer(t *testing.T) {
	psk, _ := wgtypes.GenerateKey()
	own, _ := wgtypes.GeneratePrivateKey()
	b, _, err := New(networks[:1], []byte(`{"PSK":"`+psk.String()+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	wg := b.(*Backend)
	env := backend.Env{Dir: t.TempDir(), Log: backendtest.Log(func(line string) { t.Log(line) })}
	if err := wg.Prepare(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	kernelNode(t, wg.private().PublicKey(), psk, own)
	if err := run("ip addr add 192.0.2.1/24 dev u0", "ip link set u0 up"); err != nil {
		t.Fatal(err)
	}
	local, remote := lease(1, "null"), lease(2, "null")
	local.Stacks, remote.Stacks = local.Stacks[:1], remote.Stacks[:1]
	remote.Stacks[0].Data, _ = json.Marshal(data{PublicKey: own.PublicKey().String()})
	view := backend.Input{Snapshot: subnet.Snapshot{Local: local, Peers: []subnet.Lease{remote}}, Synced: true}
	view.Node.Underlays = []backend.Underlay{{Dev: "u0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500}}
	apply(t, wg, view)

	ctx, cancel := context.WithCancel(t.Context())
	ended, views := make(chan error), make(chan backend.Input, 1)
	go func() { ended <- wg.Run(ctx, env, views) }()
	views <- view
	for _, line := range []string{"ping -c 5 -i 0.5 -W 3 10.244.2.0", "ping -c 2 -W 3 -M do -s 1392 10.244.2.0"} {
		if err := run(line); err != nil && !strings.Contains(err.Error(), " 0% packet loss") {
			t.Error(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// kernelNode makes the other end of u0, in a namespace that lasts as long as the test.
func kernelNode(t *testing.T, ours, psk, own wgtypes.Key) {
	t.Helper()
	tid, ready, done := make(chan int), make(chan bool), make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		tid <- unix.Gettid()
		<-ready
		if err == nil {
			err = flannel(ours, psk, own)
		}
		done <- err
		<-ready
	}()
	t.Cleanup(func() { close(ready) })
	if err := run("ip link add u0 type veth peer name u0p", fmt.Sprintf("ip link set u0p netns %d", <-tid)); err != nil {
		t.Fatal(err)
	}
	ready <- true
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func apply(t *testing.T, b *Backend, view backend.Input) {
	t.Helper()
	k, err := kernel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	want, skips := b.Desired(view.Node, view.Snapshot)
	have, err := k.Observe(t.Context(), want)
	if err != nil || len(skips) > 0 {
		t.Fatal(skips, err)
	}
	if err := k.Apply(t.Context(), netstate.Diff(want, have)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = run("ip link del " + device4) })
}
