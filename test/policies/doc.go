// Package policies holds the verdicts of policies against judges that others wrote: NetworkPolicies against the matcher
// of github.com/mattfenwick/cyclonus, ClusterNetworkPolicies against the evaluator of
// sigs.k8s.io/kube-network-policies.
package policies
