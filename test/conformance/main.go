// Command conformance runs tests that others wrote on a cluster with Twill, and says which pass: Kubernetes' own of
// networking, its e2e.test, those of network-policy-api, or those of cyclonus. Documentation/conformance.md has the
// results.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// options is what a run can be told.
type options struct {
	suite       string
	focus, skip string
	procs       int
	keep        bool
	kubeRouter  bool // enforces NetworkPolicies
}

// parse reads the command line.
func parse(args []string) (s cluster.Spec, o options, err error) {
	s = cluster.Spec{Name: "twc", Nodes: 3, Dir: filepath.Join(filepath.Dir(cluster.DefaultDir()), "conformance")}
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.StringVar(&o.suite, "suite", "kubernetes", "kubernetes; network-policy-api: tests of ClusterNetworkPolicies; "+
		"or cyclonus: further tests of NetworkPolicies")
	flags.StringVar(
		(*string)(&s.Families),
		"families",
		string(cluster.IPv4Only),
		"address families: dual, ipv4 or ipv6",
	)
	flags.StringVar(
		(*string)(&s.ProxyMode),
		"proxy-mode",
		string(cluster.IPTables),
		"kube-proxy's mode: iptables or nftables",
	)
	flags.StringVar(&o.focus, "focus", "", "run only those of the tests whose names this matches")
	flags.StringVar(&o.skip, "skip", "", "leave out tests whose names this matches")
	flags.StringVar(&s.Backend, "backend", "vxlan", "Twill's backend: vxlan or host-gw")
	flags.Func("network-policy", "who enforces NetworkPolicies, so that their tests run too: true, which is Twill, "+
		"kube-router, or false, which is nobody", func(text string) error {
		s.NetworkPolicy, o.kubeRouter = text == "true", text == "kube-router"
		if !s.NetworkPolicy && !o.kubeRouter && text != "false" {
			return errors.New("want true, kube-router or false")
		}
		return nil
	})
	flags.BoolVar(&s.FastPath, "fast-path", false, "let pods' packets take the fast path")
	flags.IntVar(&o.procs, "procs", 6, "number of processes that run tests")
	flags.BoolVar(&o.keep, "keep", false, "leave the cluster up")
	return s, o, flags.Parse(args)
}

func run(ctx context.Context, args []string) error {
	s, o, err := parse(args)
	if err != nil {
		return err
	}
	kubelet, err := controlplane.FindBinary("kubelet")
	if err != nil {
		return err
	}
	p := programs{filepath.Dir(filepath.Dir(kubelet))}
	tests, ok := map[string]suite{
		"kubernetes": kubernetesSuite{p}, "network-policy-api": clusterPolicySuite{p}, "cyclonus": cyclonusSuite{p},
	}[o.suite]
	if !ok {
		return fmt.Errorf("--suite %q: want kubernetes, network-policy-api or cyclonus", o.suite)
	}
	s = tests.spec(s)
	// This program cannot be a node.
	if err := os.Setenv("TWILL_CLUSTER_BIN", cmp.Or(os.Getenv("TWILL_CLUSTER_BIN"), filepath.Join(p.bin, "cluster"))); err != nil {
		return err
	}
	began := time.Now()
	progress := func(what string) { fmt.Printf("%5.1fs  %s\n", time.Since(began).Seconds(), what) }
	if !o.keep {
		defer func() {
			if err := cluster.Down(s); err != nil {
				fmt.Fprintln(os.Stderr, "conformance:", err)
			}
		}()
	}
	if err := up(ctx, tests, s, progress); err != nil {
		return err
	}
	if o.kubeRouter {
		progress("kube-router")
		if err := s.InstallKubeRouter(ctx); err != nil {
			return err
		}
	}
	progress("tests")
	dir, err := p.results(s, o)
	if err != nil {
		return err
	}
	return tests.test(ctx, s, o, dir)
}

// results makes an empty folder for what the tests say.
func (p programs) results(s cluster.Spec, o options) (string, error) {
	parts := []string{s.Backend, string(s.Families), string(s.ProxyMode)}
	switch {
	case o.suite != "kubernetes":
		parts = append(parts, o.suite)
	case s.NetworkPolicy:
		parts = append(parts, "policy")
	}
	if o.kubeRouter {
		parts = append(parts, "kube-router")
	}
	if s.FastPath {
		parts = append(parts, "fast-path")
	}
	dir := filepath.Join(p.bin, "conformance", strings.Join(parts, "-"))
	return dir, errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755))
}

// suite is tests that others wrote.
type suite interface {
	// spec adds what the cluster has to have.
	spec(s cluster.Spec) cluster.Spec
	// pack puts the images of the tests into an archive, by the names under which they are asked for, so that no node
	// looks for a registry.
	pack(ctx context.Context, archive string) error
	// prepare is called when the API server is up, and Twill is not.
	prepare(ctx context.Context, s cluster.Spec) error
	// test runs the tests; what they say goes to a log in a folder, and to the terminal what came of them.
	test(ctx context.Context, s cluster.Spec, o options, dir string) error
}

// up brings up the cluster with Twill and DNS, every node in a zone of its own.
func up(ctx context.Context, tests suite, s cluster.Spec, progress func(string)) error {
	images := filepath.Join(s.Dir, "images")
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	progress("images of the tests")
	if err := tests.pack(ctx, filepath.Join(images, "e2e.tar")); err != nil {
		return err
	}
	if err := cluster.Up(ctx, s, progress); err != nil {
		return err
	}
	if err := tests.prepare(ctx, s); err != nil {
		return err
	}
	if err := s.Install(ctx, progress); err != nil {
		return err
	}
	for n := 1; n <= s.Nodes; n++ { // tests of zones leave themselves out where there are none
		zone := fmt.Sprint("topology.kubernetes.io/zone=zone", n)
		if _, err := s.Kubectl(ctx, "label", "node", s.NodeName(n), zone, "--overwrite"); err != nil {
			return err
		}
	}
	return s.InstallDNS(ctx)
}

// kubernetesSuite is Kubernetes' e2e.test.
type kubernetesSuite struct{ programs }

func (kubernetesSuite) spec(s cluster.Spec) cluster.Spec { return s }

func (kubernetesSuite) prepare(context.Context, cluster.Spec) error { return nil }

func (p kubernetesSuite) test(ctx context.Context, s cluster.Spec, o options, dir string) error {
	log, err := os.Create(filepath.Join(dir, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"run", "--procs=" + strconv.Itoa(o.procs), "--timeout=2h", "--no-color", "--flake-attempts=2",
		"--output-dir=" + dir, "--json-report=report.json", "--label-filter=" + labels(s, s.NetworkPolicy || o.kubeRouter)}
	if o.skip != "" {
		args = append(args, "--skip="+o.skip)
	}
	if o.focus != "" {
		args = append(args, "--focus="+o.focus)
	}
	args = append(
		args,
		p.kube("e2e.test"),
		"--",
		"--kubeconfig="+s.Kubeconfig(),
		"--kubectl-path="+p.kube("kubectl"),
		"--provider=skeleton",
		"--num-nodes="+strconv.Itoa(s.Nodes),
		"--disable-log-dump",
	)
	cmd := exec.CommandContext(ctx, p.kube("ginkgo"), args...)
	cmd.Dir = p.kubeModule()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	ran := cmd.Run()
	summary, err := summarize(filepath.Join(dir, "report.json"))
	if err != nil {
		return fmt.Errorf("%w; see %s", errors.Join(ran, err), log.Name())
	}
	summary.expect(expected(s))
	fmt.Print(summary)
	err = os.WriteFile(filepath.Join(dir, "summary.txt"), []byte(summary.String()), 0o644)
	return errors.Join(err, summary.err())
}
