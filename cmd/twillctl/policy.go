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

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// policies is where NetworkPolicies and pods are read.
type policies struct {
	cluster   cluster
	files     []string // empty: the cluster
	namespace string   // of pods that are named without one
	output    string
}

func policyCommand() *cobra.Command {
	var p policies
	c := &cobra.Command{
		Use:   "policy POD",
		Short: "Show which NetworkPolicies select a pod, and what they allow",
		Long: `Policy reads NetworkPolicies, Namespaces and Pods from a cluster, through kubectl, or from files, and prints what the
policies mean for a pod. Twill does not enforce policies; what does must be installed beside it.
Exit codes: 0 done, 2 it failed.`,
		Example: `  kubectl twill policy shop/web-0
  twillctl policy --filename manifests/ shop/web`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
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
	f.StringVar(&p.cluster.context, "context", "", "kubectl's")
	f.StringVar(&p.cluster.kubeconfig, "kubeconfig", "", "kubectl's")
	addOutput(c, &p.output)
}

// read reads the cluster or the files. Pods without an address get one that no ipBlock but a family's whole range has:
// 240.0.0.0/4 is reserved, and 100::/64 discards packets.
func (p *policies) read(ctx context.Context, stdin io.Reader) (s policy.Snapshot, r policy.Rules, err error) {
	if len(p.files) > 0 {
		err = readManifests(p.files, stdin, &s)
	} else {
		var out []byte
		if out, err = p.cluster.kubectl(ctx, "get", "pods,namespaces,networkpolicies.networking.k8s.io", "--all-namespaces", "--output=json"); err == nil {
			err = manifest.Read(bytes.NewReader(out), &s)
		}
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
		err = errors.Join(err, fmt.Errorf("NetworkPolicy %s: %w", skip.Policy, skip.Err))
	}
	return s, r, err
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
}

// direction is isolated if it has policies: then only what their rules allow passes.
type direction struct {
	Policies []string `json:"policies"`
	Rules    []string `json:"rules"`
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
	in := func(d policy.Direction) direction {
		all := direction{[]string{}, []string{}}
		for _, one := range rules.Selecting(d, policy.Endpoint{Pod: pod}) {
			all.Policies = append(all.Policies, one.Name)
			for _, rule := range one.Describe(d) {
				all.Rules = append(all.Rules, one.Name+": "+rule)
			}
		}
		return all
	}
	return render(w, p.output, restrictions{pod.String(), in(policy.Ingress), in(policy.Egress)})
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
		switch {
		case len(d.Policies) == 0:
			fmt.Fprintf(&b, "  %s: no policy selects the pod, everything is allowed\n", d.name)
			continue
		case len(d.Rules) == 0:
			fmt.Fprintf(&b, "  %s: isolated by %s, nothing is allowed\n", d.name, strings.Join(d.Policies, ", "))
			continue
		}
		fmt.Fprintf(&b, "  %s: isolated by %s, which allow\n", d.name, strings.Join(d.Policies, ", "))
		for _, rule := range d.Rules {
			fmt.Fprintf(&b, "    %s\n", rule)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the restrictions.
func (r restrictions) WriteJSON(w io.Writer) error { return writeIndented(w, r) }

func writeIndented(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
