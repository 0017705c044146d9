//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/test/cluster"
)

// plugin is twillctl under the name that kubectl looks for.
type plugin struct{ dir string }

func newPlugin(t *testing.T) plugin {
	t.Helper()
	p := plugin{t.TempDir()}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(p.dir, "kubectl-twill"), "../../../cmd/twillctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build twillctl: %v\n%s", err, out)
	}
	return p
}

// command is "kubectl twill ARG…", as a user types it.
func (p plugin) command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := filepath.Abs("../../../bin/kube")
	must(t, err)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), append([]string{"twill"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+spec.Kubeconfig(), "PATH="+p.dir+":"+bin+":"+os.Getenv("PATH"))
	return cmd
}

// run runs such a command; the exit code is the plugin's.
func (p plugin) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := p.command(t.Context(), t, args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("kubectl twill %s: exit %d\n%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), out)
	return string(out), cmd.ProcessState.ExitCode()
}

// want runs it and compares the exit code and parts of what it says.
func (p plugin) want(t *testing.T, code int, parts []string, args ...string) {
	t.Helper()
	out, got := p.run(t, args...)
	if got != code {
		t.Errorf("kubectl twill %v: exit code %d, want %d\n%s", args, got, code, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("kubectl twill %v: want %q in\n%s", args, part, out)
		}
	}
}

// TestKubectlTwill: as a kubectl plugin the commands are about the cluster's nodes.
func TestKubectlTwill(t *testing.T) {
	pods := probes(t)
	matrix(t)
	p := newPlugin(t)
	t.Cleanup(func() { must(t, spec.RemoveDNS(context.Background())) })
	must(t, spec.InstallDNS(t.Context()))
	// Pods with the agents' label that are not the agents': nobody asks them.
	for _, namespace := range []string{"default", "kube-twill"} {
		apply(t, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "aaa-impostor", "namespace": "`+namespace+`",
  "labels": {"app.kubernetes.io/name": "twill"}}, "spec": {"nodeName": "`+pods[0].Node+`", "terminationGracePeriodSeconds": 0,
  "tolerations": [{"operator": "Exists"}], "containers": [{"name": "twilld", "image": "`+cluster.PodImage+`"}]}}`)
	}
	var status doctor.StatusReport
	await(t, "a status without findings", time.Minute, func() (bool, error) {
		out, code := p.run(t, "status", "--output=json")
		return code == 0, json.Unmarshal([]byte(out), &status)
	})
	if len(status.Nodes) != spec.Nodes {
		t.Fatalf("got the status of %d nodes: %+v", len(status.Nodes), status)
	}
	for _, n := range status.Nodes {
		if n.Agent != "ready" || len(n.Peers) != spec.Nodes-1 || n.OutOf != 0 {
			t.Errorf("%+v", n)
		}
	}
	p.want(t, 0, []string{"? nothing is wrong that can be seen without a probe"}, "doctor", "--no-probe")
	p.want(t, 0, []string{"✓ nothing is wrong here, and"}, "doctor")
	p.want(t, 0, []string{"✓ nothing is wrong here, and packets came back"}, "doctor", "--probe")
	p.want(t, 0, []string{"Service default/kubernetes, port https 443/TCP"}, "doctor", "--probe", "service/default/kubernetes")
	p.want(t, 0, []string{"Service default/kubernetes", "DNS", "probes came back"}, "test")
	p.want(t, 0, []string{"# nothing to change"}, "plan", pods[0].Node)
	p.want(t, 2, []string{`no agent of Twill runs on node "nowhere"`}, "doctor", "nowhere")
	p.want(t, 0, []string{pods[0].Node + " ", pods[1].Node + " ", "the reply", "probes came back"}, "trace", "default/"+pods[0].Name, pods[1].Name)
	p.want(t, 2, []string{`the cluster has no running pod "nothing"`}, "trace", pods[0].Name, "nothing")

	bundle := filepath.Join(t.TempDir(), "report.tar.gz")
	p.want(t, 0, []string{bundle}, "report", pods[0].Node, "--file="+bundle)
	names, err := exec.Command("tar", "tzf", bundle).CombinedOutput()
	if err != nil || !strings.Contains(string(names), "twilld.log") || !strings.Contains(string(names), "facts.json") || !strings.Contains(string(names), "history.json") {
		t.Errorf("the report holds %s, %v", names, err)
	}
}

// TestKubectlTwillFindsTheRule: a rule on one node that drops what comes from another's pods, written by the node's own
// iptables or nft and read by the agent's image.
func TestKubectlTwillFindsTheRule(t *testing.T) {
	pods := probes(t)
	matrix(t)
	p, target := newPlugin(t), spec.Host(pods[1].Node)
	src, dst := pods[0].Addrs[0].String(), pods[1].Addrs[0].String()
	for _, wall := range []struct{ name, up, down string }{
		{"nft", "nft add table ip e2e; add chain ip e2e in { type filter hook prerouting priority raw; }; add rule ip e2e in ip saddr " +
			src + " ip daddr " + dst + " drop", "nft delete table ip e2e"},
		{"iptables", "iptables -t raw -A PREROUTING -s " + src + " -d " + dst + " -j DROP", "iptables -t raw -D PREROUTING -s " + src + " -d " + dst + " -j DROP"},
	} {
		t.Run(wall.name, func(t *testing.T) {
			write := func(ctx context.Context, words string) {
				if _, err := target.Exec(ctx, strings.Fields(words)...); err != nil {
					t.Error(err)
				}
			}
			write(t.Context(), wall.up)
			defer write(context.Background(), wall.down)
			p.want(t, 1, []string{"✗ stops at " + pods[1].Node + ", prerouting rules"}, "trace", src, dst)
			p.traceLive(t, pods[0], pods[1])
		})
	}
}

// traceLive follows real packets from src towards dst, which drops them unseen.
func (p plugin) traceLive(t *testing.T, src, dst cluster.Pod) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	asking := make(chan struct{})
	go func() { // real packets, while they are watched
		defer close(asking)
		for ctx.Err() == nil {
			_, _ = spec.Probe(ctx, src.Name, dst.Targets()...)
		}
	}()
	// The agents' pods may capture packets, and may not trace the kernel: the counts are there, and the reason
	// why no more.
	p.want(t, 1, []string{"✗ no reply was seen; seen last on " + dst.Node + ", coming in through flannel.1", "the kernel's own reasons are not known", "not permitted"}, "trace", "--live", "--for=4s", src.Name, dst.Name)
	stop()
	<-asking
}
