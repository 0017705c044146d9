package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
	"github.com/twill-net/twill/target"
)

// policies is where NetworkPolicies and pods are read.
type policies struct {
	cluster   target.Cluster
	files     []string // empty: the cluster
	namespace string   // of pods that are named without one
	output    string
	warnings  io.Writer // what cannot be understood of ClusterNetworkPolicies: it may be of a later version of their API
}

func policyCommand() *cobra.Command {
	var p policies
	c := &cobra.Command{
		Use:   "policy [POD]",
		Short: "Show which NetworkPolicies and ClusterNetworkPolicies apply to a pod, and what they allow, or what an audit has counted",
		Long: `Policy reads NetworkPolicies, ClusterNetworkPolicies, Namespaces, Nodes and Pods from a cluster, through kubectl, or from
files, and prints what the policies mean for a pod. Agents enforce NetworkPolicies with --network-policy, and
ClusterNetworkPolicies with --cluster-network-policy. With --network-policy=audit they enforce nothing, and count what
policies deny: without a POD policy prints that for all nodes.
Exit codes: 0 done, 1 a node could not be asked, 2 it failed.`,
		Example: `  kubectl twill policy
  kubectl twill policy shop/web-0
  twillctl policy --filename manifests/ shop/web`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p.warnings = c.ErrOrStderr()
			switch {
			case len(args) == 0 && len(p.files) > 0:
				return errors.New("which pod? want NAMESPACE/POD: what an audit has counted is in a cluster, and not in files")
			case len(args) == 0:
				return p.showAudits(c.Context(), c.OutOrStdout())
			}
			return p.show(c.Context(), c.InOrStdin(), c.OutOrStdout(), args[0])
		},
	}
	p.register(c)
	c.AddCommand(policyTestCommand())
	return c
}

func (p *policies) register(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVarP(&p.files, "filename", "f", nil, "files with manifests, or directories of them, or - for standard input, instead of the cluster")
	f.StringVarP(&p.namespace, "namespace", "n", "default", "the namespace of pods that are named without one")
	p.cluster.Namespace = target.AgentNamespace
	f.StringVar(&p.cluster.Context, "context", "", "kubectl's")
	f.StringVar(&p.cluster.Kubeconfig, "kubeconfig", "", "kubectl's")
	addOutput(c, &p.output)
}

// read reads the cluster or the files. Pods without an address get one that no ipBlock but a family's whole range has:
// 240.0.0.0/4 is reserved, and 100::/64 discards packets.
func (p *policies) read(ctx context.Context, stdin io.Reader) (s policy.Snapshot, r policy.Rules, err error) {
	if len(p.files) > 0 {
		err = readManifests(p.files, stdin, &s)
	} else {
		err = p.readCluster(ctx, &s)
	}
	if err != nil {
		return s, r, err
	}
	for i, pod := range s.Pods {
		if len(pod.Addrs) == 0 {
			n := [2]byte{byte(i >> 8), byte(i)}
			pod.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{240, 0, n[0], n[1]}), netip.AddrFrom16([16]byte{1, 14: n[0], 15: n[1]})}
		}
	}
	r, skips := policy.New(s)
	for _, skip := range skips {
		one := fmt.Errorf("%s %s: %w", skip.Kind, skip.Policy, skip.Err)
		if skip.Kind == policy.ClusterKind {
			fmt.Fprintln(p.warnings, "warning:", one)
			continue
		}
		err = errors.Join(err, one)
	}
	return s, r, err
}

// readCluster reads a cluster. Not all have ClusterNetworkPolicies, and nothing else is about nodes.
func (p *policies) readCluster(ctx context.Context, s *policy.Snapshot) error {
	const clusterPolicies = "clusternetworkpolicies.policy.networking.k8s.io"
	wanted := "pods,namespaces,networkpolicies.networking.k8s.io"
	known, err := p.cluster.Kubectl(ctx, "api-resources", "--api-group=policy.networking.k8s.io", "--output=name")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(known)), clusterPolicies) {
		wanted += ",nodes," + clusterPolicies
	}
	out, err := p.cluster.Kubectl(ctx, "get", wanted, "--all-namespaces", "--output=json")
	if err != nil {
		return err
	}
	return manifest.Read(bytes.NewReader(out), s)
}

// readManifests reads files, and all files of directories that are manifests by their names.
func readManifests(paths []string, stdin io.Reader, s *policy.Snapshot) error {
	for _, path := range paths {
		if path == "-" {
			if err := manifest.Read(stdin, s); err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			continue
		}
		err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || file != path && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
				return err
			}
			text, err := os.ReadFile(file)
			if err == nil {
				err = manifest.Read(bytes.NewReader(text), s)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// end is an end of a connection: a pod, or an address.
func (p *policies) end(s policy.Snapshot, name string) (addrs []netip.Addr, pod *policy.Pod, err error) {
	if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		for _, pod := range s.Pods {
			if slices.Contains(pod.Addrs, addr.Unmap()) && !pod.HostNetwork && !pod.Ended {
				return pod.Addrs, pod, nil
			}
		}
		return []netip.Addr{addr.Unmap()}, nil, nil
	}
	namespace, base, ok := strings.Cut(name, "/")
	if !ok {
		namespace, base = p.namespace, name
	}
	pod, err = s.Find(namespace, base)
	if err != nil {
		return nil, nil, err
	}
	return pod.Addrs, pod, nil
}

// restrictions are what policies mean for a pod.
type restrictions struct {
	Pod     string    `json:"pod"`
	Ingress direction `json:"ingress"`
	Egress  direction `json:"egress"`
	Audit   *audited  `json:"audit,omitempty"` // nil: the pod's node does not audit
}

// direction is isolated if it has policies: then only what their rules allow passes. The rules of the tiers are in the
// order in which they are asked.
type direction struct {
	Admin    []string `json:"admin,omitempty"`
	Policies []string `json:"policies"`
	Rules    []string `json:"rules"`
	Baseline []string `json:"baseline,omitempty"`
	LeftOut  []string `json:"leftOut,omitempty"` // the policies that cost the pod's node too much: nothing is allowed
}

// show says what the policies mean for a pod.
func (p *policies) show(ctx context.Context, stdin io.Reader, w io.Writer, name string) error {
	s, rules, err := p.read(ctx, stdin)
	if err != nil {
		return err
	}
	_, pod, err := p.end(s, name)
	if err == nil && pod == nil {
		err = fmt.Errorf("%s is no pod's address", name)
	}
	if err != nil {
		return err
	}
	said := p.saidBy(ctx, pod)
	rules.LeaveOut(said.LeftOut)
	in := func(d policy.Direction) direction {
		applying := rules.Applying(d, policy.Endpoint{Pod: pod})
		all := direction{tierRules(applying.Admin, d), []string{}, []string{}, tierRules(applying.Baseline, d), nil}
		for _, one := range applying.Isolating {
			all.Policies = append(all.Policies, one.Name)
			if one.LeftOut {
				all.LeftOut = append(all.LeftOut, one.Name)
			}
			for _, rule := range one.Describe(d) {
				all.Rules = append(all.Rules, one.Name+": "+rule)
			}
		}
		return all
	}
	audit := newAudited(pod.Node, said)
	if audit != nil {
		audit.of(rules, pod)
	}
	return render(w, p.output, restrictions{pod.String(), in(policy.Ingress), in(policy.Egress), audit})
}

// saidBy returns what the agent of a pod's node says of policies; nothing without an agent.
func (p *policies) saidBy(ctx context.Context, pod *policy.Pod) *doctor.PolicyState {
	if len(p.files) == 0 && pod.Node != "" {
		report, err := p.cluster.Target(pod.Node).Status(ctx)
		if err == nil && len(report.Nodes) == 1 && report.Nodes[0].Policies != nil {
			return report.Nodes[0].Policies
		}
	}
	return &doctor.PolicyState{}
}

func tierRules(policies []*policy.ClusterPolicy, d policy.Direction) (all []string) {
	for _, one := range policies {
		for _, rule := range one.Describe(d) {
			all = append(all, one.Name+": "+rule)
		}
	}
	return all
}

// Failed reports false: policies are nothing wrong.
func (r restrictions) Failed() bool { return false }

// WriteText writes a paragraph for each direction.
func (r restrictions) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.Pod)
	for _, d := range []struct {
		name string
		direction
	}{{"ingress", r.Ingress}, {"egress", r.Egress}} {
		rest := "everything"
		if len(d.Admin) > 0 {
			fmt.Fprintf(&b, "  %s: the Admin tier is asked first\n%s", d.name, indented(d.Admin))
			rest = "all else"
		}
		isolating := strings.Join(d.Policies, ", ")
		switch {
		case len(d.LeftOut) > 0:
			fmt.Fprintf(&b, "  %s: isolated by %s, nothing is allowed: the pod's node leaves out what costs it more than --network-policy-budget\n"+
				"    left out: %s\n", d.name, isolating, strings.Join(d.LeftOut, ", "))
		case len(d.Rules) > 0:
			fmt.Fprintf(&b, "  %s: isolated by %s, which allow\n%s", d.name, isolating, indented(d.Rules))
		case len(d.Policies) > 0:
			fmt.Fprintf(&b, "  %s: isolated by %s, nothing is allowed\n", d.name, isolating)
		case len(d.Baseline) > 0:
			fmt.Fprintf(&b, "  %s: no NetworkPolicy isolates the pod, the Baseline tier is asked, all else is allowed\n%s", d.name,
				indented(d.Baseline))
		default:
			fmt.Fprintf(&b, "  %s: no NetworkPolicy isolates the pod, %s is allowed\n", d.name, rest)
		}
	}
	if r.Audit != nil {
		b.WriteString(r.Audit.lines())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// indented is a line for each rule.
func indented(rules []string) string {
	return "    " + strings.Join(rules, "\n    ") + "\n"
}

// WriteJSON writes the restrictions.
func (r restrictions) WriteJSON(w io.Writer) error { return writeIndented(w, r) }

func writeIndented(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
