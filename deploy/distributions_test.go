package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/subnet"
)

// oldNetwork is what a page's commands find in a cluster: nodes, flannel as Talos installs it, and kubeadm's config.
const oldNetwork = `
{apiVersion: v1, kind: Node, metadata: {name: node1}}
---
{apiVersion: v1, kind: Node, metadata: {name: node2}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: kube-flannel, namespace: kube-system},
 spec: {selector: {matchLabels: {app: flannel}}, template: {metadata: {labels: {app: flannel}}, spec: {containers: [
 {name: kube-flannel, image: flannel}]}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data:
  ClusterConfiguration: |
    apiVersion: kubeadm.k8s.io/v1beta4
    kind: ClusterConfiguration
    kubernetesVersion: v1.36.3
    networking:
      dnsDomain: cluster.local
      serviceSubnet: 10.96.0.0/12
`

// fakePrograms let a page's commands run without machines: nothing waits for pods, which nobody starts, and kubeadm
// writes manifests to a folder of the test.
var fakePrograms = map[string]string{
	"kubectl": `case "$*" in *"rollout status"*|*wait*) exit 0;; esac
exec KUBECTL "$@"`,
	"helm": `exec HELM "$@"`,
	"kubeadm": `case "$*" in *upload-config*) exec KUBEADM "$@" --kubeconfig="$KUBECONFIG";; esac
export KUBEADM_INIT_DRYRUN_DIR=DIR/written
mkdir -p "$KUBEADM_INIT_DRYRUN_DIR"
exec KUBEADM "$@" --dry-run`,
}

// page runs the commands of pages in Documentation/distributions.
type page struct {
	admin
	dir string // of the fake programs, and of what kubeadm writes
}

func newPage(t *testing.T) page {
	t.Helper()
	p := page{admin: startCluster(t), dir: t.TempDir()}
	kubeadm := controlplanetest.Binary(t, "kubeadm")
	replace := strings.NewReplacer("KUBECTL", p.kubectl, "HELM", p.helm, "KUBEADM ", kubeadm+" ", "DIR/", p.dir+"/")
	for name, script := range fakePrograms {
		script = "#!/bin/sh\n" + replace.Replace(script) + "\n"
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.must(oldNetwork, p.kubectl, "apply", "--filename=-")
	return p
}

// sh runs a block of a page in a folder that looks like this project's root.
func (p page) sh(t *testing.T, script string) {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"Documentation", "deploy"} {
		target, err := filepath.Abs(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "sh", "-ec", script)
	c.Dir = root
	c.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig, "PATH="+p.dir+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

var (
	jsonBlock  = regexp.MustCompile("(?ms)^ *```json\n(.*?)^ *```$")
	podNetwork = regexp.MustCompile(`--pod-network-cidr=([0-9a-f.:/,]+)`)
	chartValue = regexp.MustCompile(`--set ([a-zA-Z0-9]+=[^ \x60\n]+)`)
)

// TestDistributions does what the pages of distributions say, on a genuine API server. In the end the network config is
// the page's, and Twill may run on all nodes.
func TestDistributions(t *testing.T) {
	p := newPage(t)
	for name, want := range map[string]string{
		"kubeadm": `{"Network": "10.244.0.0/16", "Backend": {"Type":"vxlan"}}`,
		"k3s":     `{"Network": "10.42.0.0/16", "Backend": {"Type":"vxlan"}}`,
		"rke2":    `{"Network": "10.42.0.0/16", "Backend": {"Type":"vxlan"}}`,
		"talos":   `{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": {"Type": "vxlan", "Port": 4789}}`,
		"k0s":     `{"Network": "10.244.0.0/16", "Backend": {"Type":"vxlan"}}`,
		"kind":    `{"Network": "10.244.0.0/16", "Backend": {"Type":"vxlan"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			text := readPage(t, name)
			blocks := shellBlock.FindAllStringSubmatch(text, -1)
			if len(blocks) == 0 {
				t.Fatal("the page has no commands")
			}
			for _, b := range blocks {
				p.sh(t, b[1])
			}
			if name == "k3s" { // the last commands are those for the way back
				p.sh(t, blocks[3][1])
			}
			got := p.must("", p.kubectl, "--namespace=kube-twill", "get", "configmap", "twill",
				`--output=jsonpath={.data.net-conf\.json}`)
			if strings.Join(strings.Fields(got), "") != strings.Join(strings.Fields(want), "") {
				t.Errorf("net-conf.json is %s, want %s", got, want)
			}
			nodes := p.must("", p.kubectl, "get", "nodes", "--output=jsonpath={.items[*].metadata.labels.network}")
			if nodes != "" {
				t.Errorf("nodes still have the label network: %s", nodes)
			}
			for _, conf := range append(jsonBlock.FindAllStringSubmatch(text, -1), []string{"", got}) {
				if _, err := subnet.ParseConfig([]byte(conf[1])); err != nil {
					t.Errorf("%s: %v", conf[1], err)
				}
			}
			p.values(t, text)
		})
	}
}

// values renders the chart with the values that a page names.
func (p page) values(t *testing.T, text string) {
	t.Helper()
	args := []string{"template", "twill", "chart"}
	for _, m := range chartValue.FindAllStringSubmatch(text, -1) {
		args = append(args, "--set="+m[1])
	}
	if out, err := exec.CommandContext(t.Context(), p.helm, args...).CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", args, err, out)
	}
}

// TestKubeadm: kubeadm lets its controller manager assign subnets, by the flags of the page and by its config.
func TestKubeadm(t *testing.T) {
	p := newPage(t)
	for _, networks := range podNetwork.FindAllStringSubmatch(readPage(t, "kubeadm"), -1) {
		p.sh(t, "kubeadm init phase control-plane controller-manager --kubernetes-version=v1.36.3 "+networks[0])
		p.assigns(t, networks[1])
	}
	blocks := shellBlock.FindAllStringSubmatch(readPage(t, "kubeadm"), -1)
	p.sh(t, blocks[len(blocks)-1][1])
	p.assigns(t, "10.244.0.0/16")
}

// assigns wants the controller manager that kubeadm wrote last to assign subnets of these networks.
func (p page) assigns(t *testing.T, networks string) {
	t.Helper()
	manifest, err := os.ReadFile(p.dir + "/written/kube-controller-manager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--allocate-node-cidrs=true", "--cluster-cidr=" + networks} {
		if !strings.Contains(string(manifest), flag+"\n") {
			t.Errorf("no %s in\n%s", flag, manifest)
		}
	}
	if err := os.RemoveAll(p.dir + "/written"); err != nil {
		t.Fatal(err)
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../Documentation/distributions/" + name + ".md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCanalPage: with the values of the page the agents make no bridge, and write no CNI config.
func TestCanalPage(t *testing.T) {
	p := newPage(t)
	blocks := shellBlock.FindAllStringSubmatch(readPage(t, "multus-canal"), -1)
	if len(blocks) != 1 {
		t.Fatalf("the page has %d blocks of commands, want 1", len(blocks))
	}
	p.sh(t, blocks[0][1])
	args := p.must("", p.kubectl, "--namespace=kube-twill", "get", "daemonset", "twill",
		"--output=jsonpath={.spec.template.spec.containers[0].args}")
	if !strings.Contains(args, `"--bridge="`) || strings.Contains(args, "--cni-conf-source") {
		t.Errorf("the agents' arguments are %s", args)
	}
}
