//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

// flannel is a cluster that genuine flannel runs in: flanneld as tools/flannel builds it, by flannel's own
// manifest. Its CNI plugin alone is a stand-in, test/cluster/cmd/flannelcni; it calls the stock plugins,
// which are genuine again.
type flannel struct{ cluster.Spec }

// flannelImages packs the images that flannel's manifest names, for nodes that are yet to start.
func flannelImages(t *testing.T, manifest, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	plugin := filepath.Join(t.TempDir(), "flannel")
	sh(t, "../../..", "CGO_ENABLED=0 go build -o "+plugin+" ./test/cluster/cmd/flannelcni")
	built, err := filepath.Abs("../../../bin/flannel")
	must(t, err)
	ctx := t.Context()
	for _, line := range strings.Split(manifest, "\n") {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "image: ")
		if !ok {
			continue
		}
		i := cluster.Image{Name: name}
		must(t, i.Add(ctx, "/bin/cp", "/bin/cp"))
		file := "flannel.tar"
		if strings.Contains(name, "cni-plugin") {
			file = "flannel-cni-plugin.tar"
			must(t, i.Add(ctx, "/flannel", plugin))
		} else {
			must(t, i.Add(ctx, "/opt/bin/flanneld", filepath.Join(built, "flanneld")))
			must(t, i.Add(ctx, "/opt/bin/install-conf", filepath.Join(built, "install-conf")))
			must(t, i.AddIPTables(t.Context()))
		}
		must(t, i.Write(filepath.Join(dir, file)))
	}
}

// stockPlugins builds the plugins that flannel's conflist needs into the nodes, as Kubernetes' packages bring them.
func (f flannel) stockPlugins(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	sh(t, "../../..", "cd \"$(go list -m -f '{{.Dir}}' github.com/containernetworking/plugins)\" && GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -o "+dir+
		"/ ./plugins/main/bridge ./plugins/main/loopback ./plugins/ipam/host-local ./plugins/meta/portmap")
	for n := 1; n <= f.Nodes; n++ {
		sh(t, ".", "cp "+dir+"/* "+f.inside(t, n, "/opt/cni/bin/"))
	}
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// flannelManifest is flannel's own, as it is.
func flannelManifest(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../../bin/flannel/kube-flannel.yml")
	if err != nil {
		t.Fatalf("%v: run tools/flannel/build", err)
	}
	return string(data)
}

// published is what flannel or Twill tells peers of each node: the devices' MAC addresses.
func (f flannel) published(t *testing.T) string {
	t.Helper()
	return kubectl(t, "get", "nodes", `--output=jsonpath={range .items[*]}{.metadata.annotations.flannel\.alpha\.coreos\.com/backend-data}{"\n"}{end}`)
}

// inside is a path of a node's own files.
func (f flannel) inside(t *testing.T, n int, path string) string {
	t.Helper()
	p, err := f.NodeProcess(f.NodeName(n))
	must(t, err)
	return filepath.Join("/proc", fmt.Sprint(p.PID), "root", path)
}

// run runs commands in a node's network.
func (f flannel) run(t *testing.T, n int, script string) string {
	t.Helper()
	out, err := f.Host(f.NodeName(n)).Exec(t.Context(), "sh", "-ec", "PATH=$PATH:/usr/sbin:/sbin\n"+script)
	must(t, err)
	return out
}

// isThere checks that a node is flannel's: its rules, its conflist first.
func (f flannel) isThere(t *testing.T, n int) {
	t.Helper()
	await(t, fmt.Sprintf("node%d to have flannel's rules, which its readiness says nothing of", n), testwait.Limit, func() (bool, error) {
		rules := f.run(t, n, "iptables-save")
		return strings.Contains(rules, "flanneld masq") && strings.Contains(rules, "flanneld forward"), nil
	})
	files, err := filepath.Glob(f.inside(t, n, "/etc/cni/net.d/*.conflist"))
	must(t, err)
	if len(files) == 0 || filepath.Base(files[0]) != "10-flannel.conflist" {
		t.Errorf("node%d has the conflists %v, want flannel's first", n, files)
	}
}

// isGone checks that nothing of flannel's is in force on a node: rules, conflist.
func (f flannel) isGone(t *testing.T, n int) {
	t.Helper()
	if rules := f.run(t, n, "iptables-save"); strings.Contains(rules, "flanneld") {
		t.Errorf("node%d has flannel's rules still:\n%s", n, rules)
	}
	files, err := filepath.Glob(f.inside(t, n, "/etc/cni/net.d/*.conflist"))
	must(t, err)
	if len(files) != 1 || filepath.Base(files[0]) != "10-twill.conflist" {
		t.Errorf("node%d has the conflists %v, want Twill's alone", n, files)
	}
}

// noTrace checks that the deletion of the pods that flannel's chain made left nothing.
func (f flannel) noTrace(t *testing.T, n int) {
	t.Helper()
	await(t, "the traces of flannel's pods to go", testwait.Limit, func() (bool, error) {
		left, err := os.ReadDir(f.inside(t, n, "/var/lib/cni/flannel"))
		if len(left) > 0 {
			err = fmt.Errorf("/var/lib/cni/flannel has %d files", len(left))
		}
		return len(left) == 0, err
	})
	noLeak(t, spec.NodeName(n))
}
