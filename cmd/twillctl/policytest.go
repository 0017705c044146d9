package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/policy"
)

func policyTestCommand() *cobra.Command {
	var p policies
	c := &cobra.Command{
		Use:   "test FROM TO:PORT[/PROTOCOL]",
		Short: "Say whether policies allow a connection, and why",
		Long: `Test judges a connection by the NetworkPolicies and ClusterNetworkPolicies of a cluster, or of files: no packet is sent.
FROM and TO are pods, NAMESPACE/NAME, or addresses. PORT is a number, or the name of a container's port; PROTOCOL is tcp,
udp or sctp. In files a Deployment, or another object that makes pods, stands for a pod of its name. A pod without an
address is in no range of addresses but 0.0.0.0/0 and ::/0.
Exit codes: 0 the connection is allowed, 1 it is denied, 2 it failed.`,
		Example: `  kubectl twill policy test shop/db-0 shop/web-0:8080
  twillctl policy test --filename manifests/ shop/db shop/web:http
  twillctl policy test -f policies.yaml 192.0.2.7 shop/dns:53/udp`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			p.warnings = c.ErrOrStderr()
			return p.test(c.Context(), c.InOrStdin(), c.OutOrStdout(), args[0], args[1])
		},
	}
	p.register(c)
	return c
}

// target reads "TO:PORT[/PROTOCOL]".
func (p *policies) target(s policy.Snapshot, text string) (addrs []netip.Addr, pod *policy.Pod, port policy.Port, err error) {
	i := strings.LastIndex(text, ":")
	if i < 0 {
		return nil, nil, port, fmt.Errorf("%q: want a pod or an address, a colon and a port, such as shop/web-0:80/tcp", text)
	}
	name, protocol, _ := strings.Cut(text[i+1:], "/")
	port.Protocol = policy.Protocol(strings.ToUpper(protocol))
	if protocol == "" {
		port.Protocol = policy.TCP
	}
	if !slices.Contains([]policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}, port.Protocol) {
		return nil, nil, port, fmt.Errorf("%q: the protocol is %q, want tcp, udp or sctp", text, protocol)
	}
	if addrs, pod, err = p.end(s, text[:i]); err != nil {
		return nil, nil, port, err
	}
	if number, err := strconv.ParseUint(name, 10, 16); err == nil && number > 0 {
		port.Number = uint16(number)
		return addrs, pod, port, nil
	}
	if pod != nil {
		for _, named := range pod.Ports {
			if named.Name == name && named.Protocol == port.Protocol {
				return addrs, pod, named, nil
			}
		}
	}
	return nil, nil, port, fmt.Errorf("%q: the port is %q, want a number from 1 to 65535, or the name of a port of the pod", text, name)
}

// test judges a connection in each family that both ends have.
func (p *policies) test(ctx context.Context, stdin io.Reader, w io.Writer, from, to string) error {
	s, rules, err := p.read(ctx, stdin)
	if err != nil {
		return err
	}
	sources, source, err := p.end(s, from)
	if err != nil {
		return err
	}
	targets, target, port, err := p.target(s, to)
	if err != nil {
		return err
	}
	var all judgement
	for _, a := range sources {
		for _, b := range targets {
			if a.Is4() == b.Is4() {
				f := policy.Flow{From: policy.Endpoint{Addr: a, Pod: source}, To: policy.Endpoint{Addr: b, Pod: target}, Protocol: port.Protocol, Port: port.Number}
				all.add(rules, f)
			}
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("%s and %s have no address of the same family", from, to)
	}
	return render(w, p.output, all)
}

// judgement is the verdicts of a connection's families.
type judgement []verdict

type verdict struct {
	Family   string         `json:"family"`
	Flow     string         `json:"flow"`
	Allowed  bool           `json:"allowed"`
	Egress   string         `json:"egress"`
	Ingress  string         `json:"ingress"`
	Policies policy.Verdict `json:"policies"`
}

// add judges a flow. A verdict that says the same as the one before is left out.
func (j *judgement) add(rules policy.Rules, f policy.Flow) {
	v := rules.Judge(f)
	egress, ingress := v.Explain(f)
	one := verdict{"IPv4", f.String(), v.Allowed(), egress, ingress, v}
	if f.To.Addr.Is6() {
		one.Family = "IPv6"
	}
	if n := len(*j); n > 0 && (*j)[n-1].Egress == egress && (*j)[n-1].Ingress == ingress {
		(*j)[n-1].Family = "" // both
		return
	}
	*j = append(*j, one)
}

// Failed reports whether a family's connection is denied.
func (j judgement) Failed() bool {
	return slices.ContainsFunc(j, func(v verdict) bool { return !v.Allowed })
}

// WriteText writes three lines for each verdict.
func (j judgement) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, v := range j {
		says, family := "denied: ", ""
		if v.Allowed {
			says = "allowed: "
		}
		if len(j) > 1 {
			family = ", " + v.Family
		}
		fmt.Fprintf(&b, "%s%s%s\n  egress: %s\n  ingress: %s\n", says, v.Flow, family, v.Egress, v.Ingress)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the verdicts.
func (j judgement) WriteJSON(w io.Writer) error { return writeIndented(w, j) }
