package faults

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
}
