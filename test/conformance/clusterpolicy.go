package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/twill-net/twill/test/cluster"
)

// clusterPolicySuite is the tests of ClusterNetworkPolicies, which network-policy-api has for implementations.
type clusterPolicySuite struct{ programs }

// agnhostOfPolicies is the image that its pods have.
const agnhostOfPolicies = "registry.k8s.io/e2e-test-images/agnhost:2.45"

func (p clusterPolicySuite) built(name string) string {
	return filepath.Join(p.bin, "network-policy-api", name)
}

// spec adds what the cluster has to have.
func (clusterPolicySuite) spec(s cluster.Spec) cluster.Spec {
	s.NetworkPolicy, s.ClusterNetworkPolicy = true, true
	return s
}

// pack makes the one image: agnhost, behind one that has SCTP where the kernel has none.
func (p clusterPolicySuite) pack(ctx context.Context, archive string) error {
	i := cluster.Image{Name: agnhostOfPolicies, Base: filepath.Join(p.bin, "conformance", "rootfs.tar"),
		Entry: []string{"/agnhost"}, Args: []string{"pause"}}
	err := errors.Join(
		i.Add(ctx, "/agnhost", filepath.Join(p.bin, "conformance", "agnhost")),
		i.Add(ctx, "/agnhost-genuine", p.kube("agnhost")),
	)
	if err != nil {
		return fmt.Errorf("pack %s: %w", i.Name, err)
	}
	return cluster.WriteImages(archive, i)
}

// hostPorts are those of the tests' servers in the nodes' network, which clients on the nodes could have.
const hostPorts = "34345-34352"

// prepare installs the API.
func (p clusterPolicySuite) prepare(ctx context.Context, s cluster.Spec) error {
	for n := 1; n <= s.Nodes; n++ {
		if err := s.Host(s.NodeName(n)).SetSysctl("net/ipv4/ip_local_reserved_ports", hostPorts); err != nil {
			return err
		}
	}
	definition, err := os.ReadFile(p.built("crd.yaml"))
	if err != nil {
		return err
	}
	_, err = s.KubectlIn(ctx, strings.NewReader(string(definition)), "apply", "--server-side", "-f", "-")
	return err
}

// test runs the tests.
func (p clusterPolicySuite) test(ctx context.Context, s cluster.Spec, o options, dir string) error {
	log, err := os.Create(filepath.Join(dir, "conformance.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-test.v", "-test.timeout=2h", "-test.run=^TestConformance$/" + o.focus, "-all-features",
		"-cleanup-base-resources=false"}
	if o.skip != "" {
		args = append(args, "-test.skip=^TestConformance$/"+o.skip)
	}
	cmd := exec.CommandContext(ctx, p.built("conformance.test"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	ran := cmd.Run()
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return err
	}
	summary, passed := summarizeGo(string(text))
	fmt.Print(summary)
	err = os.WriteFile(filepath.Join(dir, "summary.txt"), []byte(summary), 0o644)
	if ran == nil && passed == 0 {
		ran = errors.New("no test ran")
	}
	if ran != nil {
		ran = fmt.Errorf("network-policy-api's tests: %w; see %s", ran, log.Name())
	}
	return cmp.Or(ran, err)
}

// result is what "go test -v" says of a test, and how deep it is within others.
var result = regexp.MustCompile(`(?m)^( *)--- (PASS|FAIL|SKIP): (\S+) \((\S+)\)$`)

// summarizeGo returns a line for each test, with the parts of it that failed, and how many passed.
func summarizeGo(text string) (summary string, passed int) {
	var b strings.Builder
	counts := map[string]int{}
	for _, m := range result.FindAllStringSubmatch(text, -1) {
		_, name, ok := strings.Cut(m[3], "/")
		switch depth := len(m[1]) / 4; {
		case !ok:
		case depth == 1:
			counts[m[2]]++
			fmt.Fprintf(&b, "%s: %s (%s)\n", strings.ToLower(m[2]), name, m[4])
		case m[2] == "FAIL":
			fmt.Fprintf(&b, "    failed: %s\n", name)
		}
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d skipped\n", counts["PASS"], counts["FAIL"], counts["SKIP"])
	return b.String(), counts["PASS"]
}
