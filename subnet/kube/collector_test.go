package kube

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// collectGarbage runs the garbage collector of a genuine kube-controller-manager until the test ends.
func (s *server) collectGarbage(t *testing.T) {
	t.Helper()
	manager, err := controlplane.FindBinary("kube-controller-manager")
	if err != nil {
		t.Skipf("needs a kube-controller-manager: run `make cluster-tools`: %v", err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "manager.log"))
	must(t, err)
	defer log.Close()
	cmd := exec.Command(manager, "--kubeconfig="+s.api.KubeconfigFile(controlplane.Admin), "--leader-elect=false",
		"--secure-port=0", "--controllers=garbage-collector-controller", "--allocate-node-cidrs=false")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("kube-controller-manager said:\n%s", text)
		}
	})
}

// leftBehind makes Lease objects of Nodes whose agents are down then: published ones, of a podCIDR and of a claim, and a
// claim that never became more.
func (s *server) leftBehind(t *testing.T) {
	t.Helper()
	for i, name := range []string{"kubetest-assigned", "kubetest-self-leasing", "kubetest-half", "kubetest-again"} {
		n := testNode(name)
		o := leaseOptions([]string{subnet.StoreBoth, subnet.StoreLeases}[i%2])
		if o.Node = name; i == 1 {
			o.ClaimNamespace = claimSpace
		} else {
			n = testNode(name, fmt.Sprintf("10.244.%d.0/24", 50+i))
		}
		s.createNode(t, n)
		if i == 2 {
			half := &node{ObjectMeta: s.node(t, name).ObjectMeta}
			must(t, s.admin.createClaim(t.Context(), claimSpace, half, netip.MustParsePrefix("10.244.52.0/24")))
			continue
		}
		store, _ := s.open(t, o)
		acquire(t, store, wantOf(name))
	}
}

// has reports whether there are Lease objects of these subnets and no others.
func (s *server) has(t *testing.T, subnets ...string) bool {
	t.Helper()
	var got, want []string
	for _, c := range s.claims(t) {
		got = append(got, c.Name)
	}
	for _, p := range subnets {
		want = append(want, claimName(netip.MustParsePrefix(p)))
	}
	slices.Sort(got)
	slices.Sort(want)
	return slices.Equal(got, want)
}

// TestGarbage: no subnet is held by a Node that is gone, whether its agent is down or runs, also when there is another
// Node of its name; an administrator's reservation is.
func TestGarbage(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	s.allowClaims(t)
	s.leftBehind(t)
	const again, reserved, moved, old = "10.244.53.0/24", "10.244.60.0/24", "10.244.62.0/24", "10.244.61.0/24"
	s.reserve(t, reserved, new("kubetest-gone"))
	s.createNode(t, testNode(self, old))
	store, _ := s.open(t, leaseOptions(subnet.StoreLeases))
	first := acquire(t, store, want4)
	w := watching(t, store)
	testwait.Until(t, "the first snapshot", func() bool { return w.last().Local.Equal(first) })
	if n := len(s.claims(t)); n != 6 {
		t.Fatalf("there are %d Lease objects, want 6", n)
	}
	s.collectGarbage(t)

	for _, name := range []string{"kubetest-assigned", "kubetest-self-leasing", "kubetest-half", "kubetest-again"} {
		s.deleteNode(t, name)
	}
	s.createNode(t, testNode("kubetest-again", again))
	s.deleteNode(t, self)
	s.createNode(t, testNode(self, moved))
	began := time.Now()
	testwait.Until(t, "the garbage collector", func() bool { return s.has(t, reserved, moved) })
	t.Logf("collected after %s", time.Since(began).Round(100*time.Millisecond))

	o := leaseOptions(subnet.StoreLeases)
	o.Node = "kubetest-again"
	later, _ := s.open(t, o)
	acquire(t, later, wantOf(o.Node))
	s.deleteNode(t, self)
	s.createNode(t, testNode(self, moved))
	owned := func() bool {
		o := s.object(t, moved)
		return o != nil && len(o.OwnerReferences) == 1 && o.OwnerReferences[0].UID == s.node(t, self).UID
	}
	testwait.Until(t, "the object of the Node that came back", owned)
	loop.Sleep(t.Context(), 3*time.Second) // the garbage collector has seen all of it
	if !s.has(t, reserved, moved, again) || !owned() {
		t.Errorf("of the Nodes that are there the Lease objects are %+v", s.claims(t))
	}
}
