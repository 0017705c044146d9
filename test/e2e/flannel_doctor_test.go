//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestFlannelDoctor asks the doctor about nodes of genuine flannel, with nothing but what kubectl prints of the Nodes: a healthy
// node has no finding, and what is broken is named as on a node of Twill's.
func TestFlannelDoctor(t *testing.T) {
	flanneld := genuineFlannel(t)
	common := []breakage{
		{"ip route del $SUBNET", "ip route add $ROUTE", "route-missing"},
		{"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1", "ip-forward-off"},
	}
	for backend, faults := range map[string][]breakage{
		"host-gw": {{"ip route replace $SUBNET via 192.168.33.250 dev eth1", "ip route replace $ROUTE", "route-altered"}},
		"vxlan": {
			{"ip neigh del $GATEWAY dev flannel.1", "ip neigh replace $GATEWAY lladdr $MAC dev flannel.1 nud permanent", "neighbour-missing"},
			{"ip neigh replace $GATEWAY lladdr 02:00:00:00:00:01 dev flannel.1 nud permanent",
				"ip neigh replace $GATEWAY lladdr $MAC dev flannel.1 nud permanent", "neighbour-altered"},
			{"bridge fdb del $MAC dev flannel.1 dst $PEER", "bridge fdb append $MAC dev flannel.1 dst $PEER", "fdb-missing"},
			{"ip link set flannel.1 mtu 1400", "ip link set flannel.1 mtu 1450", "vtep-mtu"},
			{"ip link set flannel.1 down", "true", "vtep-down"}, // the last: flannel does not put back what that deletes
		},
	} {
		t.Run(backend, func(t *testing.T) {
			spec := lab.Spec{Name: "fldoc" + strings.ReplaceAll(backend, "-", ""), Backend: backend, Store: lab.Kube, Nodes: 2, Pods: 1,
				Agents: map[string]string{"node1": flanneld, "node2": flanneld}}
			d := flannelDoctor{cluster{t, labtest.Start(t, spec)}, filepath.Join(labtest.BinDir(t), "twillctl")}
			d.matrix()
			for _, n := range d.lab.Nodes() {
				testwait.Nil(t, n.Name+" is healthy", func() error {
					if found := d.ask(n); len(found) > 0 {
						return fmt.Errorf("findings %v", found)
					}
					return nil
				})
			}
			if out := d.run(d.lab.Nodes()[0], "plan"); !strings.Contains(out, " chain iptables ") { // what Twill would write, all of it
				t.Errorf("the plan is\n%s", out)
			}
			values := d.values(backend)
			n := d.lab.Nodes()[0]
			for _, f := range append(common, faults...) {
				d.exec(n, values.Replace(f.do))
				found := d.ask(n)
				if len(found) == 0 || found[0] != f.want {
					t.Errorf("%s: findings %v, want %s first", f.do, found, f.want)
				}
				d.exec(n, values.Replace(f.undo))
			}
		})
	}
}

// breakage is a command that breaks something on node1, the one that mends it, and the finding between.
type breakage struct{ do, undo, want string }

type flannelDoctor struct {
	cluster
	program string
}

// ask returns the IDs of what the doctor finds on a node.
func (d flannelDoctor) ask(n *lab.Node) (ids []string) {
	d.Helper()
	out := d.run(n, "doctor", "-o", "json")
	var found struct{ Findings []struct{ ID string } }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		d.Fatalf("%v: %s", err, out)
	}
	for _, f := range found.Findings {
		ids = append(ids, f.ID)
	}
	return ids
}

// run runs a command of twillctl's on a node, which gets the cluster's Nodes.
func (d flannelDoctor) run(n *lab.Node, args ...string) string {
	d.Helper()
	nodes, err := d.lab.API(d.Context(), http.MethodGet, "/api/v1/nodes", nil)
	if err != nil {
		d.Fatal(err)
	}
	cmd := exec.CommandContext(d.Context(), d.program, append(args, "--lease-file=-", "--node="+n.Name, "--subnet-file="+n.SubnetFile(),
		"--cni-conf-dir="+filepath.Dir(n.SubnetFile()), "--cni-bin-dir="+filepath.Dir(d.program), "--checkpoint-file="+d.TempDir()+"/none")...)
	var out, wrong bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(nodes), &out, &wrong
	d.must(n.Do(cmd.Start))
	_ = cmd.Wait() // it exits with 1 if there is something
	if wrong.Len() > 0 {
		d.Fatalf("%v: %s", args, &wrong)
	}
	return out.String()
}

// values are what commands on node1 name.
func (d flannelDoctor) values(backend string) *strings.Replacer {
	peer := d.lab.Nodes()[1]
	subnet, at := peer.Subnets()[0], peer.Underlay()[0].String()
	route := subnet.String() + " via " + at + " dev eth1"
	mac := ""
	if backend == "vxlan" {
		route = subnet.String() + " via " + subnet.Addr().String() + " dev flannel.1 onlink"
		_, mac, _ = strings.Cut(d.exec(peer, "ip -o link show flannel.1"), "link/ether ")
		mac, _, _ = strings.Cut(mac, " ")
	}
	return strings.NewReplacer("$SUBNET", subnet.String(), "$ROUTE", route, "$GATEWAY", subnet.Addr().String(), "$MAC", mac, "$PEER", at)
}
