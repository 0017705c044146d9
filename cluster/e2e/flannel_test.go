//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/cluster"
)

// flannel is flannel's complete state on the nodes of a cluster, as v0.28 leaves it: lease, device, routes, neighbours,
// FDB, iptables chains, subnet.env, the conflist and the plugins that it names.
type flannel struct {
	cluster.Spec
	plugins string // a directory with the stock CNI plugins
}

// stockPlugins builds the plugins that flannel's conflist needs.
func stockPlugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sh(t, "../..", "cd \"$(go list -m -f '{{.Dir}}' github.com/containernetworking/plugins)\" && GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -o "+dir+
		"/ ./plugins/main/bridge ./plugins/main/loopback ./plugins/ipam/host-local ./plugins/meta/portmap")
	sh(t, "../..", "CGO_ENABLED=0 go build -o "+dir+"/flannel ./cluster/cmd/flannelcni")
	return dir
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func (f flannel) mac(n int) string { return fmt.Sprintf("0e:00:00:00:00:%02x", n) }
func (f flannel) subnet(t *testing.T, n int) string {
	t.Helper()
	out, err := f.Kubectl(t.Context(), "get", "node", f.NodeName(n), "--output=jsonpath={.spec.podCIDR}")
	must(t, err)
	if !strings.HasSuffix(out, ".0/24") {
		t.Fatalf("%s has podCIDR %q", f.NodeName(n), out)
	}
	return strings.TrimSuffix(out, ".0/24")
}

// inside is a path of a node's own files.
func (f flannel) inside(t *testing.T, n int, path string) string {
	t.Helper()
	p, err := f.NodeProcess(f.NodeName(n))
	must(t, err)
	return filepath.Join("/proc", fmt.Sprint(p.PID), "root", path)
}

func (f flannel) put(t *testing.T, n int, path string, data []byte, mode os.FileMode) {
	t.Helper()
	full := f.inside(t, n, path)
	must(t, os.MkdirAll(filepath.Dir(full), 0o755))
	must(t, os.WriteFile(full, data, mode))
}

// run runs commands in a node's network.
func (f flannel) run(t *testing.T, n int, script string) string {
	t.Helper()
	out, err := f.Host(f.NodeName(n)).Exec(t.Context(), "sh", "-ec", "PATH=$PATH:/usr/sbin:/sbin\n"+script)
	must(t, err)
	return out
}

const flannelConflist = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
 {"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`

// install makes flannel's state on all nodes.
func (f flannel) install(t *testing.T) {
	t.Helper()
	for n := 1; n <= f.Nodes; n++ {
		for _, name := range []string{"flannel", "bridge", "host-local", "portmap", "loopback"} {
			data, err := os.ReadFile(filepath.Join(f.plugins, name))
			must(t, err)
			f.put(t, n, "/opt/cni/bin/"+name, data, 0o755)
		}
		f.lease(t, n)
		f.device(t, n)
		f.firewall(t, n)
		f.conflist(t, n)
	}
}

func (f flannel) lease(t *testing.T, n int) {
	t.Helper()
	note := func(key, value string) string { return "flannel.alpha.coreos.com/" + key + "=" + value }
	_, err := f.Kubectl(t.Context(), "annotate", "--overwrite", "node", f.NodeName(n), note("kube-subnet-manager", "true"),
		note("backend-type", "vxlan"), note("backend-data", fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, f.mac(n))), note("public-ip", f.Underlay(n)[0].String()))
	must(t, err)
	f.put(t, n, "/run/flannel/subnet.env", fmt.Appendf(nil,
		"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=%s.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", f.subnet(t, n)), 0o644)
}

func (f flannel) device(t *testing.T, n int) {
	t.Helper()
	script := fmt.Sprintf("sysctl -qw net.ipv4.ip_forward=1\nip link add flannel.1 address %s mtu 1450 type vxlan id 1 dev eth0 local %s dstport 8472 nolearning\n"+
		"ip addr add %s.0/32 dev flannel.1\nip link set flannel.1 up\n", f.mac(n), f.Underlay(n)[0], f.subnet(t, n))
	for peer := 1; peer <= f.Nodes; peer++ {
		if peer != n {
			s := f.subnet(t, peer)
			script += fmt.Sprintf("ip neigh replace %s.0 lladdr %s dev flannel.1 nud permanent\nbridge fdb replace %s dev flannel.1 dst %s self permanent\n"+
				"ip route replace %s.0/24 via %s.0 dev flannel.1 onlink\n", s, f.mac(peer), f.mac(peer), f.Underlay(peer)[0], s, s)
		}
	}
	f.run(t, n, script)
}

func (f flannel) firewall(t *testing.T, n int) {
	t.Helper()
	f.run(t, n, strings.ReplaceAll(`
c='-m comment --comment'
iptables -w -t nat -N FLANNEL-POSTRTG
iptables -w -t nat -A POSTROUTING $c 'flanneld masq' -j FLANNEL-POSTRTG
iptables -w -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 $c 'flanneld masq' -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG -s POD.0/24 -d 10.244.0.0/16 $c 'flanneld masq' -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d POD.0/24 $c 'flanneld masq' -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d POD.0/24 $c 'flanneld masq' -j RETURN
iptables -w -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 $c 'flanneld masq' -j MASQUERADE --random-fully
iptables -w -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 $c 'flanneld masq' -j MASQUERADE --random-fully
iptables -w -N FLANNEL-FWD
iptables -w -A FORWARD $c 'flanneld forward' -j FLANNEL-FWD
iptables -w -A FLANNEL-FWD -s 10.244.0.0/16 $c 'flanneld forward' -j ACCEPT
iptables -w -A FLANNEL-FWD -d 10.244.0.0/16 $c 'flanneld forward' -j ACCEPT
`, "POD", f.subnet(t, n)))
}

// conflist writes flannel's conflist the way that containerd notices.
func (f flannel) conflist(t *testing.T, n int) {
	t.Helper()
	f.put(t, n, "/etc/cni/net.d/.flannel", []byte(flannelConflist), 0o644)
	must(t, os.Rename(f.inside(t, n, "/etc/cni/net.d/.flannel"), f.inside(t, n, "/etc/cni/net.d/10-flannel.conflist")))
}
