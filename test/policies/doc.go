// Package policies holds the verdicts of NetworkPolicies against a judge that others wrote: the matcher of
// github.com/mattfenwick/cyclonus.
package policies
