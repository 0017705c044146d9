//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
)

// onNode runs a script as a process of node number n: its files, its network.
func onNode(t testing.TB, n int, script string) string {
	t.Helper()
	p, err := spec.NodeProcess(spec.NodeName(n))
	must(t, err)
	out, err := spec.Host(spec.NodeName(n)).Exec(t.Context(), "nsenter", fmt.Sprint("--target=", p.PID), "--mount", "--pid",
		"sh", "-ec", "PATH=$PATH:/usr/sbin:/sbin\n"+script)
	must(t, err)
	return out
}

// leak leaves the addresses of a pod that its runtime forgot: they were given by the real plugin, the pod's
// namespace is gone, and no DEL will ever come.
func leak(t *testing.T, n int, container string) []string {
	t.Helper()
	before, err := spec.Reserved(spec.NodeName(n))
	must(t, err)
	onNode(t, n, `ip netns add twe-leak
trap 'ip netns delete twe-leak' EXIT
echo '{"cniVersion": "1.0.0", "name": "cbr0", "type": "twill"}' |
	CNI_COMMAND=ADD CNI_CONTAINERID=`+container+` CNI_NETNS=/run/netns/twe-leak CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/twill >/dev/null`)
	after, err := spec.Reserved(spec.NodeName(n))
	must(t, err)
	leaked := slices.DeleteFunc(after, func(a string) bool { return slices.Contains(before, a) })
	if len(leaked) != 2 {
		t.Fatalf("the pod that is forgotten left %v, want an address of each family", leaked)
	}
	return leaked
}

// TestLeakedAddresses: the agent frees what a pod left that is gone without word, and nothing of pods whose
// runtime does not answer. All it has for this is the manifest's.
func TestLeakedAddresses(t *testing.T) {
	must(t, spec.AgentFlag(t.Context(), "--reservations-grace=5s"))
	t.Cleanup(func() {
		if err := spec.Install(context.Background(), func(string) {}); err != nil {
			t.Error(err)
		}
	})
	probes(t)
	held, err := spec.Reserved("node2")
	must(t, err)
	leaked := leak(t, 2, "forgotten")
	must(t, spec.Signal("node2", "containerd", unix.SIGSTOP))
	defer func() {
		must(t, spec.Signal("node2", "containerd", unix.SIGCONT))
		kubectl(t, "wait", "--for=condition=Ready", "node/node2", "--timeout=60s")
	}()
	var have []string
	await(t, fmt.Sprintf("%v to be free", leaked), time.Minute, func() (bool, error) {
		have, err = spec.Reserved("node2")
		return !slices.ContainsFunc(leaked, func(a string) bool { return slices.Contains(have, a) }), err
	})
	slices.Sort(held)
	slices.Sort(have)
	if !slices.Equal(held, have) {
		t.Errorf("with a runtime that does not answer the pods' addresses are %v, before they were %v", have, held)
	}
}

// TestDeletedPluginsComeBack deletes the plugins from under the runtime.
func TestDeletedPluginsComeBack(t *testing.T) {
	p, err := spec.NodeProcess("node2")
	must(t, err)
	for _, name := range []string{"twill", "portmap"} {
		path := filepath.Join("/proc", fmt.Sprint(p.PID), "root/opt/cni/bin", name)
		want, err := os.ReadFile(path)
		must(t, err)
		must(t, os.Remove(path))
		await(t, path+" to be there again", testwait.Limit, func() (bool, error) {
			got, err := os.ReadFile(path)
			return err == nil && bytes.Equal(got, want), nil
		})
	}
	if log := agentLog(t, "node2"); !strings.Contains(log, "installed CNI plugins") {
		t.Errorf("the agent says nothing of it:\n%s", log)
	}
}
