//go:build vm

package wireguard

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/netstate/wireguard"
	"github.com/twill-net/twill/subnet"
)

// reconcile brings the machine to what the backend wants and returns the plan that it took.
func (m *machine) reconcile(peers ...subnet.Lease) string {
	m.Helper()
	var plan string
	err := m.Do(func() (err error) {
		plan, err = pass(m.b, m.N, subnet.Snapshot{Local: m.lease(), Peers: peers})
		return err
	})
	if err != nil {
		m.Fatal(err)
	}
	return plan
}

// pass is the agent's, in this thread's namespace, with the connections of a process that has just begun.
func pass(b *Backend, n int, snap subnet.Snapshot) (string, error) {
	w, err := wireguard.Open(b)
	if err != nil {
		return "", err
	}
	defer w.Close()
	k, err := kernel.New(nil, w)
	if err != nil {
		return "", err
	}
	defer k.Close()
	node := bothFamilies(n)
	for i := range node.Underlays {
		node.Underlays[i].Dev = "u0"
	}
	node.WireGuard = true
	want, skips := b.Desired(node, snap)
	if len(skips) > 0 {
		return "", fmt.Errorf("skips %v", skips)
	}
	plan := ""
	for range 2 {
		have, err := k.Observe(context.Background(), want)
		if err != nil {
			return plan, err
		}
		p := netstate.Diff(want, have)
		if len(p) == 0 {
			break
		}
		plan += p.String()
		if err := k.Apply(context.Background(), p); err != nil {
			return plan, err
		}
	}
	have, err := k.Observe(context.Background(), want)
	if rest := netstate.Diff(want, have); len(rest) > 0 {
		err = fmt.Errorf("still to do:\n%s", rest)
	}
	return plan, err
}

// kernelPair is two nodes on one segment whose kernels have WireGuard.
func kernelPair(t *testing.T, options string) (a, b *machine) {
	t.Helper()
	a, b = newMachineWith(t, 1, options), newMachineWith(t, 2, options)
	backendtest.Connect(a.Machine, b.Machine)
	a.reconcile(b.lease())
	b.reconcile(a.lease())
	return a, b
}

// TestKernelPackets: every mode, both families, the exact MTU, an agent that starts again, and a peer that left.
func TestKernelPackets(t *testing.T) {
	for _, mode := range []string{"separate", "auto", "ipv6"} {
		t.Run(mode, func(t *testing.T) {
			a, b := kernelPair(t, `{"Mode":"`+mode+`","PSK":"`+key(9)+`"}`)
			for _, to := range []string{"10.244.2.0", "fc00:0:0:2::"} {
				if !a.Pings(to) {
					t.Fatalf("no answer from %s", to)
				}
			}
			a.Command("ping -c 1 -W 2 -M do -s 1392 10.244.2.0")
			if out, err := a.Try("ping -c 1 -W 2 -M do -s 1393 10.244.2.0"); err == nil || !strings.Contains(out, "mtu=1420") {
				t.Errorf("a packet of 1421 bytes: %s", out)
			}
			if plan := a.reconcile(b.lease()); plan != "" {
				t.Errorf("a new agent writes\n%s", plan)
			}
			if plan := a.reconcile(); !strings.Contains(plan, "- peer "+b.b.private().PublicKey().String()) {
				t.Errorf("the peer left, and the plan is\n%s", plan)
			}
			if out, err := b.Try("ping -c 2 -W 1 10.244.1.0"); err == nil {
				t.Errorf("a peer that left still gets answers: %s", out)
			}
		})
	}
}

// TestKernelRotation: node 1 gets another key while both sides send. What is lost is what was under way.
func TestKernelRotation(t *testing.T) {
	a, b := kernelPair(t, `{}`)
	if !a.Pings("10.244.2.0") {
		t.Fatal("no answer")
	}
	pinger := exec.Command("nsenter", "--net="+b.NS, "ping", "-i", "0.1", "-c", "100", "-W", "10", "-q", "10.244.1.0")
	var out strings.Builder
	pinger.Stdout = &out
	if err := pinger.Start(); err != nil {
		t.Fatal(err)
	}
	if err := a.b.Prepare(t.Context(), backend.Env{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	plan := a.reconcile(b.lease())
	if strings.Count(plan, "\n") != 2 || strings.Contains(plan, a.b.private().String()) {
		t.Errorf("the plan of a rotation, a listener for each family:\n%s", plan)
	}
	b.reconcile(a.lease())
	err := pinger.Wait()
	if !strings.Contains(out.String(), " 0% packet loss") {
		t.Errorf("%v: %s", err, out.String())
	}
}
