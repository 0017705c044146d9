package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeScript stands for kubectl: it gets objects from files, and runs twillctl on the node of an agent's pod.
const fakeScript = `#!/bin/bash
set -e
dir=$(dirname "$0")
case "$1 $2 $*" in
"get daemonsets"*) cat $dir/agents.json;;
"get pods "*metadata.name=client*) cat $dir/client.json;;
"get pods "*) cat $dir/pods.json;;
"get services"*) cat $dir/services.json $dir/nodes.json;;
"get endpointslices "*) cat $dir/endpointslices.json;;
"exec "*)
	node=$3
	while [ "$1" != -- ]; do shift; done
	shift 2
	exec PROGRAM lab --name services exec $node -- PROGRAM "$@" \
		--checkpoint-file=DIR/$node/checkpoint.json --subnet-file=DIR/$node/subnet.env;;
esac
`

// plugin makes kubectl-twill beside a kubectl that stands for a cluster of the lab's nodes.
func (w *world) plugin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := strings.NewReplacer("PROGRAM", w.program, "DIR", filepath.Dir(w.Nodes()[0].Dir())).Replace(fakeScript)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("kubectl", script)
	var agents, pods []object
	agents = append(agents, object{"kind": "DaemonSet", "metadata": object{"name": "twill", "namespace": "kube-twill", "uid": "1"}})
	for _, n := range w.Nodes() {
		agents = append(agents, object{"kind": "Pod", "spec": object{"nodeName": n.Name}, "metadata": object{"name": n.Name,
			"namespace": "kube-twill", "ownerReferences": []object{{"kind": "DaemonSet", "uid": "1", "controller": true}}}})
	}
	for _, p := range w.Pods() {
		o := object{"kind": "Pod", "metadata": object{"name": strings.ReplaceAll(p.ID(), "/", "-"), "namespace": "shop"},
			"spec": object{"nodeName": p.Node.Name}, "status": object{"phase": "Running", "podIPs": []object{{"ip": p.Addrs[0]}}}}
		if pods = append(pods, o); p.ID() == client {
			write("client.json", list(t, []object{o}))
		}
	}
	write("agents.json", list(t, agents))
	write("pods.json", list(t, pods))
	for name, path := range map[string]string{"services": "/api/v1/services", "nodes": "/api/v1/nodes",
		"endpointslices": "/apis/discovery.k8s.io/v1/endpointslices"} {
		data, err := w.API(t.Context(), http.MethodGet, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".json", string(data))
	}
	if err := os.Symlink(w.program, filepath.Join(dir, "kubectl-twill")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func list(t *testing.T, items []object) string {
	t.Helper()
	data, err := json.Marshal(object{"kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// run runs a command and compares its exit code and parts of what it prints.
func run(t *testing.T, dir string, code int, parts []string, command string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%s %v: exit code %d, want %d", command, args, got, code)
	}
	for _, part := range parts {
		if !strings.Contains(string(out), part) {
			t.Errorf("%s %v: want %q in\n%s", command, args, part, out)
		}
	}
}

// testMachine traces on a node, which knows no Services itself, and from a workstation.
func (w *world) testMachine(t *testing.T) {
	w.service(t, "web", nil)
	w.endpoints(t, "web", httpPort, backend{pod: "node2/pod1"})
	w.service(t, "deaf", nil)
	w.endpoints(t, "deaf", httpPort, backend{pod: "node2/pod2"})
	w.fine(t, client, "service/shop/web")
	w.settled(t, client, "service/shop/deaf", has("nobody-listens"))
	dir := w.plugin(t)
	endpoint := w.pod(t, "node2/pod1").Addrs[0].String()
	fine := []string{"Service shop/web, port http 80/TCP, at " + w.clusterIP(t, "web").String() + ":80 (cluster IP)",
		"endpoint " + endpoint + ":8080 (node2-pod1 on node2): ready; chosen 4 of 4 times (conntrack has 4)", "by node1: ",
		"✓ all 4 connections were answered", " → " + endpoint, "packets seen on node1"}
	kubectl, src := filepath.Join(dir, "kubectl-twill"), w.pod(t, client).Addrs[0].String()
	run(t, dir, 0, fine, kubectl, "trace", "shop/client", "service/shop/web:80")
	run(t, dir, 0, fine[:1], kubectl, "trace", src, w.clusterIP(t, "web").String()+":80")
	run(t, dir, 1, []string{"✗ 4 of 4 connections fail", "[nobody-listens] ", "nobody listens on TCP 8080"},
		kubectl, "trace", "shop/client", "service/shop/deaf")
	run(t, dir, 1, []string{"[no-service] there is no Service shop/wob"}, kubectl, "trace", "shop/client", "svc/shop/wob")
	run(t, dir, 1, []string{"[no-service] "}, kubectl, "trace", "shop/client", "192.0.2.1:80")
	w.testCapture(t, dir)
	file := filepath.Join(dir, "all.json")
	command := fmt.Sprintf("cat %[1]s/services.json %[1]s/endpointslices.json %[1]s/nodes.json > %[2]s", dir, file)
	run(t, dir, 0, nil, "sh", "-c", command)
	onNode := func(code int, parts []string, args ...string) {
		t.Helper()
		n := w.node(t, "node1")
		run(t, dir, code, parts, w.program, append([]string{"lab", "--name", w.Name(), "exec", "node1", "--", w.program, "trace",
			"--checkpoint-file=" + n.CheckpointFile(), "--subnet-file=" + n.SubnetFile()}, args...)...)
	}
	onNode(0, fine, "--objects="+file, src, "service/shop/web")
	onNode(2, []string{"a node does not know Services: give them by --objects"}, src, "service/shop/web")
	onNode(2, []string{"SRC " + endpoint + " is no pod of this node, which is node1"}, "--objects="+file, endpoint, "service/shop/web")
}

// testCapture: what two nodes write is one file, in which a packet is on every device of both.
func (w *world) testCapture(t *testing.T, dir string) {
	file := filepath.Join(dir, "capture.pcapng")
	src, dst := w.pod(t, client), w.pod(t, "node2/pod1").Addrs[0]
	ctx, stop := context.WithCancel(t.Context())
	pings := make(chan struct{})
	go func() {
		defer close(pings)
		for ctx.Err() == nil {
			_, _ = src.Exec(ctx, "ping", "-c", "1", "-W", "1", dst.String())
		}
	}()
	run(t, dir, 0, []string{"capturing on node1 and node2 for 2s"}, filepath.Join(dir, "kubectl-twill"), "capture", "shop/client", dst.String(),
		"--for", "2s", "--output", file)
	stop()
	<-pings
	out, err := exec.CommandContext(t.Context(), "tshark", "-r", file, "-d", "udp.port==8472,vxlan", "-Y", "icmp.type == 8 && ip.dst == "+dst.String(),
		"-T", "fields", "-e", "frame.interface_name").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"node1/veth", "node1/cni0", "node1/flannel.1", "node1/eth1", "node2/eth1", "node2/flannel.1", "node2/cni0", "node2/veth"} {
		if !strings.Contains(string(out), device) {
			t.Errorf("no ping is on %s:\n%s", device, out)
		}
	}
	run(t, dir, 2, []string{"--for: a cluster's nodes cannot see that you stop"}, filepath.Join(dir, "kubectl-twill"), "capture", "shop/client", dst.String(),
		"--for", "0", "--output", file)
}
