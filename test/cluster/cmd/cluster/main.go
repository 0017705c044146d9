// Command cluster runs a Kubernetes cluster on this machine and gives kubectl a way to it. Its nodes and its control
// plane are the same program.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

const usage = `usage: cluster [flags] up | down | kubectl ARG… | reboot NODE-NUMBER

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:])
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "init" {
		return cluster.Init(args[1])
	}
	if len(args) == 2 && args[0] == "control-plane" {
		return controlPlane(ctx, args[1])
	}
	s := cluster.Spec{}
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&s.Dir, "dir", cluster.DefaultDir(), "state, logs and the nodes' file systems")
	flags.StringVar(&s.Name, "name", "twk", "prefix of its network namespaces")
	flags.IntVar(&s.Nodes, "nodes", 3, "number of nodes")
	flags.BoolVar(&s.SelfLease, "self-lease", false, "let nobody assign podCIDRs: Twill leases by itself")
	flags.StringVar((*string)(&s.Families), "families", string(cluster.Dual), "address families: dual, ipv4 or ipv6")
	flags.StringVar(
		(*string)(&s.ProxyMode),
		"proxy-mode",
		string(cluster.IPTables),
		"kube-proxy's mode: iptables or nftables",
	)
	flags.StringVar(&s.Backend, "backend", "vxlan", "Twill's backend, one that needs no options: vxlan or host-gw")
	flags.BoolVar(&s.NetworkPolicy, "network-policy", false, "let the agents enforce NetworkPolicies")
	flags.BoolVar(&s.ClusterNetworkPolicy, "cluster-network-policy", false, "with -network-policy: ClusterNetworkPolicies, too")
	flags.BoolVar(&s.FastPath, "fast-path", false, "let pods' packets take the fast path")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return use(ctx, s, flags.Args())
}

// use runs one command on the cluster in s.Dir.
func use(ctx context.Context, s cluster.Spec, args []string) error {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	if command == "up" {
		return up(ctx, s)
	}
	if old, err := cluster.Open(s.Dir); err == nil {
		s = old
	} else if !errors.Is(err, fs.ErrNotExist) || command != "down" {
		return fmt.Errorf("no cluster in %s (make one with up): %w", s.Dir, err)
	}
	switch {
	case command == "down":
		return cluster.Down(s)
	case command == "kubectl":
		return kubectl(ctx, s, args[1:])
	case command == "reboot" && len(args) == 2:
		var n int
		if _, err := fmt.Sscan(args[1], &n); err != nil || n < 2 || n > s.Nodes {
			return fmt.Errorf("node number %q: want 2 to %d, since the first has the control plane", args[1], s.Nodes)
		}
		return s.Reboot(n)
	}
	return fmt.Errorf("%q is unknown: want up, down, kubectl or reboot", command)
}

func up(ctx context.Context, s cluster.Spec) error {
	began := time.Now()
	progress := func(what string) { fmt.Printf("%5.1fs  %s\n", time.Since(began).Seconds(), what) }
	if err := cluster.Up(ctx, s, progress); err != nil {
		return err
	}
	if err := s.Install(ctx, progress); err != nil {
		return err
	}
	m, err := s.Matrix(ctx)
	if err != nil {
		return err
	}
	progress("up")
	fmt.Print("\n", m, "\nkubectl --kubeconfig=", s.Kubeconfig(), " get nodes\n")
	return m.Err()
}

// kubectl is kubectl with this terminal.
func kubectl(ctx context.Context, s cluster.Spec, args []string) error {
	program, err := cluster.KubectlBinary()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig=" + s.Kubeconfig()}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// controlPlane gets its listener from the program that started it.
func controlPlane(ctx context.Context, path string) error {
	var s cluster.Spec
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return fmt.Errorf("take over the listener: %w", err)
	}
	return cluster.RunControlPlane(ctx, s, l)
}
