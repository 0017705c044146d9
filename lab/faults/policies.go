package faults

import (
	"context"
	"fmt"
	"strings"
)

// claims is a manifest's name.
const claims = "claims.yaml"

// policyFaults are what keeps network policies from being enforced.
var policyFaults = []Fault{
	{Name: "netpol-table-deleted", Finding: "policies-not-enforced", Policies: true,
		Description: "somebody deletes the table that enforces network policies",
		Inject:      script("nft delete table ip twill-policy")},
	{Name: "netpol-accept-first", Finding: "policies-not-enforced", Policies: true,
		Description: "a rule that accepts everything stands first among those that enforce network policies",
		Inject:      script("nft insert rule ip twill-policy forward accept")},
	{Name: "netpol-pod-released", Finding: "policies-not-enforced", Policies: true, IPv4: true,
		Description: "somebody takes the rules away from one pod",
		Inject: script(
			"nft delete element ip twill-policy ingress { {pod} } ; add element ip twill-policy ingress { {pod} : accept }",
		)},
	{Name: "netpol-bridge-nf", Finding: "br-netfilter-missing", Policies: true,
		Description: "packets between pods of one node do not go through the rules any more",
		Inject:      script("sysctl -q -w net.bridge.bridge-nf-call-iptables=0")},
	{Name: "netpol-second-engine", Finding: "policy-engines-both", Policies: true, KeepAgent: true,
		Description: "another engine enforces network policies, too",
		Inject: script(
			"nft add table inet kube-network-policies",
			"nft add chain inet kube-network-policies postrouting { type filter hook postrouting priority 95 ; }",
		),
		Undo: script("nft delete table inet kube-network-policies")},
	{Name: "netpol-kube-router", Finding: "policy-engines-both", Policies: true, KeepAgent: true,
		Description: "kube-router was here, and has left its chains",
		Inject:      script("iptables -w -N KUBE-ROUTER-FORWARD"),
		Undo:        script("iptables -w -X KUBE-ROUTER-FORWARD")},
	{Name: "netpol-ipvs", Finding: "policies-ipvs", Policies: true, KeepAgent: true,
		Description: "kube-proxy runs in mode IPVS",
		Inject:      script("ip link add kube-ipvs0 type bridge"),
		Undo:        script("ip link del kube-ipvs0")},
	{Name: "netpol-address-claimed", Finding: "address-claimed", Policies: true, KeepAgent: true, Lossless: true,
		Description: "a peer says that a pod of its own has the address of a pod of this node",
		Inject:      claimAddress,
		Undo:        func(_ context.Context, v *Target) error { return v.Lab.DeleteManifest(claims) }},
}

// claimAddress makes a pod of the peer's that claims an address of the target's, and waits until the agent says so.
func claimAddress(ctx context.Context, v *Target) error {
	const pod = "{kind: Pod, metadata: {name: claim}, spec: {nodeName: %s}, status: {podIPs: [{ip: %q}]}}"
	err := v.Lab.ApplyManifest(claims, fmt.Appendf(nil, pod, v.Peer.Name, v.Address(v.Node.Pods()[0].Addrs)))
	if err != nil {
		return err
	}
	return until(ctx, "the agent says that an address is claimed", func() (bool, error) {
		said, err := v.Node.Ask(ctx, "/status")
		return strings.Contains(said, `"claims":`), err
	})
}
