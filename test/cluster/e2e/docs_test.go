//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// blocks is the shell blocks of a page, in order.
func blocks(t *testing.T, page string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../../Documentation", page))
	must(t, err)
	var all []string
	for i, part := range strings.Split(string(data), "\n```") {
		if script, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 {
			all = append(all, script)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no shell blocks", page)
	}
	return all
}

// execute runs a block of a page as its reader does, in the folder of the source.
func execute(t *testing.T, script string) string {
	t.Helper()
	bin, err := filepath.Abs("../../../bin")
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "KUBECONFIG="+spec.Kubeconfig(), "PATH="+bin+"/kube:"+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// TestDocumentation does what the pages on installing, upgrading and uninstalling say, on a fresh cluster.
func TestDocumentation(t *testing.T) {
	ownCluster(t, cluster.Spec{Name: "twd", Nodes: 2})
	for _, b := range blocks(t, "install.md") {
		execute(t, b)
	}
	pods := probes(t)
	matrix(t)
	stop := watchLoss(t, pods)
	for _, b := range blocks(t, "upgrade.md") {
		execute(t, b)
	}
	stop()
	matrix(t)
	var said string
	for _, b := range blocks(t, "uninstall.md") {
		said += execute(t, b)
	}
	if !strings.Contains(said, "flannel.1") {
		t.Errorf("the cleanup does not name what it deleted:\n%s", said)
	}
	await(t, "nodes to be NotReady", time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "get", "nodes", `--output=jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}`)
		return err == nil && !strings.Contains(out, "True"), err
	})
	for n := 1; n <= spec.Nodes; n++ {
		out, err := spec.Host(spec.NodeName(n)).Exec(t.Context(), "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; ip link; ip route; nft list tables")
		must(t, err)
		for _, trace := range []string{"flannel", "cni0"} {
			if strings.Contains(out, trace) {
				t.Errorf("%s has %s still:\n%s", spec.NodeName(n), trace, out)
			}
		}
	}
}
