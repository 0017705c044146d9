// Command cyclonus runs the cases of cyclonus, which makes NetworkPolicies and judges by probes whether a cluster
// enforces them: all of it is in cyclonus' own packages. Unlike its command "generate" this one lets cyclonus' worker in
// each pod try the connections, nine calls for a probe instead of 486, chooses cases by their names, goes on after a
// case that cannot be carried out, and writes what came of each case as a line of JSON.
//
// A pod always reaches itself, as Kubernetes says, while cyclonus expects that policies can forbid it. Such probes are
// ignored, as with its --ignore-loopback.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cyclonus:", err)
		os.Exit(1)
	}
}

type options struct {
	focus, skip      string
	report           string
	protocols        string
	retries, seconds int
	list             bool
}

// The namespaces, pods and ports are cyclonus' defaults, which its cases are made for.
var (
	namespaces = []string{"x", "y", "z"}
	pods       = []string{"a", "b", "c"}
	ports      = []int{80, 81}
)

func run(args []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("cyclonus", flag.ContinueOnError)
	flags.StringVar(&o.focus, "focus", "", "run only those of the cases whose names this matches")
	flags.StringVar(&o.skip, "skip", "", "leave out cases whose names this matches")
	flags.StringVar(&o.report, "report", "", "file for a line of JSON about each case")
	flags.StringVar(&o.protocols, "protocols", "TCP,UDP,SCTP", "protocols that pods serve and try")
	flags.IntVar(&o.retries, "retries", 1, "how often a step is tried again that does not pass")
	flags.IntVar(&o.seconds, "wait", 1, "seconds between a change and the probe of it")
	flags.BoolVar(&o.list, "list", false, "print the cases' names")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := o.filter()
	if err != nil {
		return err
	}
	if o.list {
		for _, c := range cases("10.244.1.2") {
			if wanted(c.name) {
				fmt.Fprintln(stdout, c.name)
			}
		}
		return nil
	}
	cluster, err := connect()
	if err != nil {
		return err
	}
	report, err := os.Create(o.report)
	if err != nil {
		return fmt.Errorf("--report: want a file that can be written: %w", err)
	}
	defer report.Close()
	return o.runAll(cluster, wanted, json.NewEncoder(report))
}

// filter tells by a name whether a case is wanted.
func (o options) filter() (wanted func(name string) bool, err error) {
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return nil, fmt.Errorf("--focus: %w", err)
	}
	skip, err := regexp.Compile(o.skip)
	if err != nil {
		return nil, fmt.Errorf("--skip: %w", err)
	}
	return func(name string) bool {
		return focus.MatchString(name) && (o.skip == "" || !skip.MatchString(name))
	}, nil
}

// connect finds the cluster that KUBECONFIG names. A case calls its API server some fifty times, for which client-go's
// default of five calls a second is too slow.
func connect() (kube.IKubernetes, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster by KUBECONFIG: %w", err)
	}
	config.QPS, config.Burst = 100, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("find the cluster by KUBECONFIG: %w", err)
	}
	return &kube.Kubernetes{ClientSet: client, RestConfig: config}, nil
}

// namedCase is a case with a name that no other has.
type namedCase struct {
	name string
	*generator.TestCase
}

// cases are all that there are. Blocks of addresses in their policies are about a pod's address.
func cases(address string) []namedCase {
	const allowDNS = true
	var all []namedCase
	for i, c := range generator.NewTestCaseGenerator(allowDNS, address, namespaces, nil, nil).GenerateTestCases() {
		name, tags := fmt.Sprintf("%03d", i+1), strings.Join(c.Tags.Keys(), ",")
		if c.Description != tags {
			name += " " + c.Description
		}
		all = append(all, namedCase{name + " [" + tags + "]", c})
	}
	return all
}

// useAddresses makes the pods connect to Services by their addresses. By their names, every connection of a pod that
// may not ask the cluster's DNS would wait for an answer for a minute. cyclonus forgets the addresses of Services when a
// case makes or relabels pods, so there it is the pods' own.
func (c namedCase) useAddresses() {
	mode := generator.ProbeMode(generator.ProbeModeServiceIP)
	for _, step := range c.Steps {
		if slices.ContainsFunc(step.Actions, func(a *generator.Action) bool { return a.CreatePod != nil || a.SetPodLabels != nil }) {
			mode = generator.ProbeModePodIP
		}
	}
	for _, step := range c.Steps {
		of := *step.Probe // the cases share them
		of.Mode = mode
		step.Probe = &of
	}
}

// runAll makes the pods, runs the wanted cases on them, and prints cyclonus' own account of them.
func (o options) runAll(cluster kube.IKubernetes, wanted func(string) bool, report *json.Encoder) error {
	const (
		batches        = true
		timeout        = 180 // seconds, for the pods to run
		ignoreLoopback = true
	)
	var protocols []corev1.Protocol
	for p := range strings.SplitSeq(o.protocols, ",") {
		protocols = append(protocols, corev1.Protocol(p))
	}
	resources, err := probe.NewDefaultResources(cluster, namespaces, pods, ports, protocols, nil, timeout, batches, "registry.k8s.io")
	if err != nil {
		return fmt.Errorf("make the pods: %w", err)
	}
	last, err := resources.GetPod("z", "c")
	if err != nil {
		return err
	}
	interpreter := connectivity.NewInterpreter(cluster, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase:       true,
		VerifyClusterStateBeforeTestCase: true,
		KubeProbeRetries:                 o.retries,
		PerturbationWaitSeconds:          o.seconds,
		BatchJobs:                        batches,
		IgnoreLoopback:                   ignoreLoopback,
		JobTimeoutSeconds:                1,
	})
	printer := &connectivity.Printer{IgnoreLoopback: ignoreLoopback}
	for _, c := range cases(last.IP) {
		if !wanted(c.name) {
			continue
		}
		c.useAddresses()
		began := time.Now()
		fmt.Println("case", c.name)
		result := interpreter.ExecuteTestCase(c.TestCase)
		printer.PrintTestCaseResult(result)
		if err := report.Encode(newOutcome(c.name, result, time.Since(began), ignoreLoopback)); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	printer.PrintSummary()
	return nil
}

// outcome is what came of a case.
type outcome struct {
	Name    string
	Passed  bool
	Error   string `json:",omitempty"` // why it was not carried out to its end
	Seconds float64
	Steps   []step
}

// step is a change and the probe of it.
type step struct {
	Tries          int
	Wrong, Correct int // pairs of pods in the last try
}

func newOutcome(name string, r *connectivity.Result, took time.Duration, ignoreLoopback bool) outcome {
	o := outcome{Name: name, Passed: r.Err == nil && r.Passed(ignoreLoopback), Seconds: took.Seconds()}
	if r.Err != nil {
		o.Error = r.Err.Error()
	}
	for _, s := range r.Steps {
		counts := s.LastComparison().ValueCounts(ignoreLoopback)
		o.Steps = append(o.Steps, step{
			Tries:   len(s.KubeProbes),
			Wrong:   counts[connectivity.DifferentComparison],
			Correct: counts[connectivity.SameComparison],
		})
	}
	return o
}
