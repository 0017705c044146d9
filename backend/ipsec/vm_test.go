//go:build vm

package ipsec

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/netstate/xfrm"
	"github.com/twill-net/twill/subnet"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

// machine is a node in a namespace of its own.
type machine struct {
	*backendtest.Machine
	env   backend.Env
	views chan backend.Input
	ended chan error
	stop  context.CancelFunc
}

func newMachine(t *testing.T, n int) *machine {
	t.Helper()
	m := &machine{Machine: backendtest.New(t, n), views: make(chan backend.Input, 1)}
	m.env = backend.Env{Dir: t.TempDir(), Log: backendtest.Log(func(line string) { t.Log("node", n, line) })}
	return m
}

// reconcile does what the agent does, and returns the plan that it took.
func (m *machine) reconcile(peers ...subnet.Lease) (plan string) {
	m.Helper()
	view := backend.Input{Node: node(m.N, "u0"), Snapshot: subnet.Snapshot{Local: lease(m.N), Peers: peers}, Synced: true}
	err := m.Do(func() error {
		p, err := xfrm.Open()
		if err != nil {
			return err
		}
		defer p.Close()
		k, err := kernel.New(nil, p)
		if err != nil {
			return err
		}
		defer k.Close()
		want, _ := newBackend(m.T).Desired(view.Node, view.Snapshot)
		have, err := k.Observe(m.Context(), want)
		if err != nil {
			return err
		}
		diff := netstate.Diff(want, have)
		plan = diff.String()
		if err := k.Apply(m.Context(), diff); err != nil {
			return err
		}
		have, err = k.Observe(m.Context(), want)
		if rest := netstate.Diff(want, have); len(rest) > 0 {
			return fmt.Errorf("still to do:\n%s", rest)
		}
		return err
	})
	if err != nil {
		m.Fatal(err)
	}
	select {
	case <-m.views:
	default:
	}
	m.views <- view
	return plan
}

// start runs the backend, whose charon is in the namespace.
func (m *machine) start() {
	ctx, cancel := context.WithCancel(m.Context())
	m.ended, m.stop = make(chan error, 1), cancel
	b, over := newBackend(m.T), make(chan struct{})
	m.Cleanup(func() {
		cancel()
		<-over // it logs into the test
	})
	go func() {
		defer close(over)
		err := m.Do(func() error { return b.Run(ctx, m.env, m.views) })
		m.Logf("node %d: Run has ended: %v", m.N, err)
		m.ended <- err
	}()
}

func pair(t *testing.T) (a, b *machine) {
	t.Helper()
	a, b = newMachine(t, 1), newMachine(t, 2)
	backendtest.Connect(a.Machine, b.Machine)
	for _, m := range []*machine{a, b} {
		m.Command("ip link add cni0 type bridge", "ip link set cni0 up", fmt.Sprintf("ip addr add 10.244.%d.1/24 dev cni0", m.N),
			fmt.Sprintf("ip addr add fd00:244:0:%d::1/64 dev cni0 nodad", m.N))
		m.reconcile(lease(3 - m.N))
	}
	return a, b
}

// watch counts what leaves by the interface: ESP packets, and packets with a pod's address. What comes in is
// no measure: decrypted packets come in a second time, by the same interface.
func (m *machine) watch() {
	m.Helper()
	m.Command("nft add table netdev watch", "nft add chain netdev watch out { type filter hook egress device u0 priority 0 ; }")
	for _, match := range []string{"ip protocol esp", "ip saddr 10.244.0.0/16", "ip6 nexthdr esp", "ip6 saddr fd00:244::/56"} {
		m.Command("nft add rule netdev watch out " + match + " counter")
	}
}

// saw wants ESP of both families to have left, if any, and no packet of a pod as it is.
func (m *machine) saw(esp bool) {
	m.Helper()
	saw, err := m.Try("nft -n list table netdev watch")
	if err != nil {
		m.Fatalf("%v: %s", err, saw)
	}
	for match, want := range map[string]bool{"ip protocol 50": esp, "ip6 nexthdr 50": esp, "ip saddr 10.244.0.0/16": false, "ip6 saddr fd00:244::/56": false} {
		none := strings.Contains(saw, match+" counter packets 0 bytes 0")
		if !strings.Contains(saw, match+" counter") || none == want {
			m.Errorf("packets of %s left: %t, want %t:\n%s", match, !none, want, saw)
		}
	}
}

// pods are those of the other node.
var pods = []string{"10.244.2.1", "fd00:244:0:2::1"}

// TestPackets: nothing passes before there are keys, then ESP, and never a pod's packet as it is; with
// charon killed, with an agent that starts again, and after a peer left.
func TestPackets(t *testing.T) {
	a, b := pair(t)
	a.watch()
	for _, pod := range pods {
		if out, err := a.Try("ping -c 2 -W 1 " + pod); err == nil {
			t.Errorf("answered without keys: %s", out)
		}
	}
	a.saw(false)
	a.start()
	b.start()
	for _, pod := range pods {
		if !a.Pings(pod) {
			t.Fatalf("no answer of %s", pod)
		}
	}
	for _, line := range []string{"ping -c 3 -i 0.2 -W 5 -M do -s 1395 10.244.2.1", // 1423 bytes
		"ping -c 3 -i 0.2 -W 5 -M do -s 1355 fd00:244:0:2::1", // 1403 bytes
		"ping -c 1 -W 5 -I 192.0.2.1 10.244.2.1", "ping -c 1 -W 5 -I 2001:db8::1 fd00:244:0:2::1", "ping -c 1 -W 5 192.0.2.2", "ping -c 1 -W 5 2001:db8::2"} {
		a.Command(line)
	}
	a.saw(true)

	if plan := a.reconcile(lease(2)); plan != "" {
		t.Errorf("a new agent writes\n%s", plan)
	}
	a.stop()
	if err := <-a.ended; err != nil {
		t.Errorf("the end of Run: %v", err)
	}
	for _, pod := range pods {
		a.Command("ping -c 3 -i 0.2 -W 2 " + pod) // the kernel's associations go on
	}
	a.start()
	a.reconcile(lease(2))
	for _, pod := range pods {
		if !a.Pings(pod) {
			t.Errorf("no answer of %s with a new charon", pod)
		}
	}

	kill(t, a.env.Dir)
	if err := <-a.ended; err == nil || !strings.Contains(err.Error(), "charon has ended (signal: killed)") {
		t.Errorf("charon was killed, and Run says %v", err)
	}
	a.start()
	plan := a.reconcile()
	if strings.Count(plan, "\n") != 16 {
		t.Errorf("the peer left, and the plan is\n%s", plan)
	}
	for _, pod := range pods {
		if out, err := a.Try("ping -c 2 -W 1 " + pod); err == nil {
			t.Errorf("a peer that left answers: %s", out)
		}
	}
	a.saw(true)
	a.stop()
	b.stop()
}

// TestAnnouncedAddress: a peer that announces the address of another host, which has no keys, cuts no pod
// off from that host.
func TestAnnouncedAddress(t *testing.T) {
	a, b := newMachine(t, 1), newMachine(t, 2)
	backendtest.Connect(a.Machine, b.Machine)
	a.Command("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.1.1/24 dev cni0", "ip addr add fd00:244:0:1::1/64 dev cni0 nodad")
	b.Command("ip route add 10.244.1.0/24 via 192.0.2.1", "ip route add fd00:244:0:1::/64 via 2001:db8::1")
	evil := lease(3)
	evil.Stacks = slices.Clone(evil.Stacks)
	for i, s := range lease(2).Stacks {
		evil.Stacks[i].Underlay = s.Underlay
	}
	for _, to := range []string{"-I 10.244.1.1 192.0.2.2", "-I fd00:244:0:1::1 2001:db8::2"} {
		if !a.Pings(to) {
			t.Fatalf("no answer of %s without policies", to)
		}
	}
	a.reconcile(evil)
	for _, charon := range []bool{false, true} {
		if charon {
			a.start()
		}
		for _, to := range []string{"-I 10.244.1.1 192.0.2.2", "-I fd00:244:0:1::1 2001:db8::2"} {
			if out, err := a.Try("ping -c 5 -i 0.5 -W 2 " + to); err != nil || !strings.Contains(out, " 0% packet loss") {
				t.Errorf("charon runs: %t, ping %s: %v: %s", charon, to, err, out)
			}
		}
		for _, to := range []string{"10.244.3.1", "fd00:244:0:3::1"} {
			if _, err := a.Try("ping -c 1 -W 1 " + to); err == nil {
				t.Errorf("charon runs: %t, %s answers without keys", charon, to)
			}
		}
	}
	a.stop()
}

// kill ends the charon whose configuration is in dir.
func kill(t *testing.T, dir string) {
	t.Helper()
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		env, err := os.ReadFile("/proc/" + p.Name() + "/environ")
		var pid int
		if _, e := fmt.Sscan(p.Name(), &pid); e != nil || err != nil || pid == os.Getpid() || !strings.Contains(string(env), "STRONGSWAN_CONF="+dir) {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("there is no charon")
}
