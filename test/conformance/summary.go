package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/twill-net/twill/test/cluster"
)

// labels chooses the tests of [sig-network] that ask nothing of a cluster but a pod network and kube-proxy. Those of a
// feature need what its name says: a cloud's load balancers, an ingress controller, a policy engine, SCTP in the
// kernel, the internet. Of SCTP, those of policies need only what agnhost has here. Those that are disruptive restart
// programs of the control plane over SSH, and those that are serial change the cluster's DNS for all others. Those of
// NetworkPolicies run where somebody enforces them.
func labels(s cluster.Spec, enforced bool) string {
	features := "Feature: isEmpty"
	switch dual := s.Families == cluster.Dual; {
	case enforced && dual:
		features = "(Feature: isSubsetOf {IPv6DualStack, NetworkPolicy} || Feature: consistsOf {NetworkPolicy, SCTPConnectivity})"
	case enforced:
		features = "(Feature: isSubsetOf {NetworkPolicy} || Feature: consistsOf {NetworkPolicy, SCTPConnectivity})"
	case dual:
		features = "Feature: isSubsetOf {IPv6DualStack}"
	}
	return "sig-network && !Disruptive && !Serial && " + features
}

// expected are the tests that fail, and why they do. One of them that passes is an error too.
func expected(s cluster.Spec) map[string]string {
	if s.Backend == "host-gw" {
		return nil
	}
	return map[string]string{
		"[sig-network] Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes": "" +
			"kube-proxy masquerades a node that asks its own NodePort, as the device by which the packet leaves: the overlay's",
	}
}

// spec is what ginkgo's JSON report says of one test.
type spec struct {
	ContainerHierarchyTexts  []string
	ContainerHierarchyLabels [][]string
	LeafNodeType             string
	LeafNodeText             string
	LeafNodeLabels           []string
	State                    string
	NumAttempts              int
	Failure                  struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

func (s spec) has(label string) bool {
	return slices.Contains(s.LeafNodeLabels, label) ||
		slices.ContainsFunc(s.ContainerHierarchyLabels, func(l []string) bool { return slices.Contains(l, label) })
}

// summary is what came of a run.
type summary struct {
	conformance                     int // of the passed ones, those that Kubernetes' conformance asks for
	passed, failed, again, declined []spec
	broken                          []spec // what is no test: the suite's set-up
	known                           []spec // failed as was expected
	surprises                       []spec // passed, and was expected to fail
}

func summarize(report string) (summary, error) {
	data, err := os.ReadFile(report)
	if err != nil {
		return summary{}, err
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(data, &suites); err != nil {
		return summary{}, fmt.Errorf("read %s: %w", report, err)
	}
	var sum summary
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			sum.add(s)
		}
	}
	return sum, nil
}

func (s *summary) add(t spec) {
	failed := !slices.Contains([]string{"passed", "skipped", "pending"}, t.State)
	switch {
	case t.LeafNodeType != "It":
		if failed {
			s.broken = append(s.broken, t)
		}
	case failed:
		s.failed = append(s.failed, t)
	case t.State == "skipped" && t.Failure.Message != "": // by itself, with a reason
		s.declined = append(s.declined, t)
	case t.State == "passed":
		s.passed = append(s.passed, t)
		if t.has("Conformance") {
			s.conformance++
		}
		if t.NumAttempts > 1 {
			s.again = append(s.again, t)
		}
	}
}

// expect takes the tests that fail for known reasons, by name, out of those that failed.
func (s *summary) expect(known map[string]string) {
	isKnown := func(t spec) bool { return known[t.name()] != "" }
	for _, t := range s.failed {
		if isKnown(t) {
			t.Failure.Message = known[t.name()]
			s.known = append(s.known, t)
		}
	}
	s.failed = slices.DeleteFunc(s.failed, isKnown)
	for _, t := range s.passed {
		if isKnown(t) {
			s.surprises = append(s.surprises, t)
		}
	}
}

func (s summary) String() string {
	var b strings.Builder
	list := func(title string, specs []spec) {
		for _, t := range specs {
			why, _, _ := strings.Cut(strings.TrimSpace(t.Failure.Message), "\n")
			fmt.Fprintf(&b, "%s: %s\n", title, t.name())
			if why != "" {
				fmt.Fprintf(&b, "    %s\n", why)
			}
		}
	}
	list("broken", s.broken)
	list("failed", s.failed)
	list("failed as expected", s.known)
	list("passed against expectation", s.surprises)
	list("failed once, then passed", s.again)
	list("skipped by itself", s.declined)
	fmt.Fprintf(&b, "%d passed (%d of them conformance), %d failed as expected, %d failed, %d skipped\n",
		len(s.passed), s.conformance, len(s.known), len(s.failed), len(s.declined))
	return b.String()
}

// err says why the run is no success: a test failed, or none ran.
func (s summary) err() error {
	switch n := len(s.failed) + len(s.broken); {
	case n > 0:
		return fmt.Errorf("%d of Kubernetes' tests failed", n)
	case len(s.surprises) > 0:
		return fmt.Errorf("%d tests passed that are known to fail: take them from the list", len(s.surprises))
	case len(s.passed) == 0:
		return errors.New("no test ran")
	}
	return nil
}
