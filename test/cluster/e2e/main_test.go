//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// spec is the cluster of all tests but those that need one of their own.
var spec cluster.Spec

// readyBefore is the nodes' Ready conditions before the manifest was applied.
var readyBefore string

// keep leaves the cluster up, for the next run while a test is being written.
var keep = os.Getenv("TWILL_CLUSTER_KEEP") != ""

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Getenv("TWILL_CLUSTER_BIN") == "" {
		path, err := filepath.Abs("../../../bin/cluster")
		if err != nil {
			return 1, err
		}
		if err := os.Setenv("TWILL_CLUSTER_BIN", path); err != nil {
			return 1, err
		}
	}
	spec = cluster.Spec{Name: "twe", Nodes: 3, Dir: filepath.Join(filepath.Dir(cluster.DefaultDir()), "e2e")}
	if !keep {
		if err := cluster.Down(spec); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, cluster.Down(spec)) }()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	progress := func(what string) { fmt.Println(time.Now().Format("15:04:05"), what) }
	if err := cluster.Up(ctx, spec, progress); err != nil {
		return 1, err
	}
	readyBefore, err = spec.Kubectl(ctx, "get", "nodes", `--output=jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}`)
	if err != nil {
		return 1, err
	}
	if err := spec.Install(ctx, progress); err != nil {
		return 1, errors.Join(err, tell(ctx))
	}
	return m.Run(), nil
}

// tell says what the agents said, for a failed start.
func tell(ctx context.Context) error {
	pods, _ := spec.Kubectl(ctx, "get", "pods", "--all-namespaces", "--output=wide")
	logs, _ := spec.Kubectl(ctx, "-n", "kube-twill", "logs", "daemonset/twill", "--all-containers", "--tail=30")
	events, _ := spec.Kubectl(ctx, "get", "events", "--all-namespaces", "--field-selector=type=Warning")
	return errors.New(pods + logs + events)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := spec.Kubectl(t.Context(), args...)
	must(t, err)
	return out
}

// apply applies a manifest and deletes it when the test ends.
func apply(t testing.TB, manifest string) {
	t.Helper()
	must(t, spec.Apply(t.Context(), manifest))
	t.Cleanup(func() {
		_, err := spec.KubectlIn(context.Background(), strings.NewReader(manifest), "delete", "--ignore-not-found", "--wait=true", "-f", "-")
		if err != nil {
			t.Error(err)
		}
	})
}

// probes starts the pods of cluster.ProbeManifest, if there are none, and returns one a node. They stay.
func probes(t *testing.T) []cluster.Pod {
	t.Helper()
	must(t, spec.Apply(t.Context(), cluster.ProbeManifest))
	kubectl(t, "rollout", "status", "daemonset/probe", "--timeout=90s")
	var pods []cluster.Pod
	await(t, "a probe on each node", time.Minute, func() (bool, error) {
		var err error
		pods, err = spec.Pods(t.Context(), "app=probe")
		return len(pods) == spec.Nodes, err
	})
	return pods
}

func await(t testing.TB, what string, limit time.Duration, ok func() (bool, error)) {
	t.Helper()
	must(t, spec.Await(t.Context(), what, limit, ok))
}

// matrix is every pod to every pod.
func matrix(t *testing.T) {
	t.Helper()
	m, err := spec.PodMatrix(t.Context(), probes(t))
	must(t, err)
	if err := m.Err(); err != nil {
		t.Errorf("%v\n%s", err, m)
	}
}

// expect lets a pod ask and gives the answers; whatever fails is an error.
func expect(t *testing.T, pod string, targets ...string) []cluster.Reply {
	t.Helper()
	replies, err := spec.Probe(t.Context(), pod, targets...)
	must(t, err)
	for _, r := range replies {
		if r.Error != "" {
			t.Errorf("%s asks %s: %s", pod, r.Target, r.Error)
		}
	}
	return replies
}

// client is the address in a server's answer.
func client(r cluster.Reply) string {
	_, addr, _ := strings.Cut(r.Answer, " ")
	return addr
}
