package enforced

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/enforce"
	"github.com/twill-net/twill/policy/policytest"
)

// TestFailing: while another program owns the table of policies, so that the kernel refuses to write it, the agent says so, after
// a minute as the reason why the node is not ready. Once the program ends, the policies are there.
func TestFailing(t *testing.T) {
	h := newHost(t, "tpolfail")
	release := own(t, h)
	var tables *filter.Filter
	if err := h.Do(func() (err error) {
		tables, err = filter.New()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	registry, from := prometheus.NewRegistry(), &policytest.Source{}
	snap, site := policytest.Square(10)
	e := enforce.New(enforce.Config{Node: site.Node, Bridge: site.Bridge, Source: from, Kernel: within{Host: h, tables: tables},
		Ports: plugged(nil), Log: slog.New(slog.DiscardHandler), Metrics: enforce.NewMetrics(registry)})
	_ = e.Protect([]netip.Prefix{site.Subnets[0]})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	from.Put(policy.Change{Rules: true, Snapshot: func() policy.Snapshot { return snap }})
	failing := func() bool {
		text := strings.NewReader("# HELP twill_policy_failing 1 while the last reconcile of network policies has failed.\n" +
			"# TYPE twill_policy_failing gauge\ntwill_policy_failing 1\n")
		return testutil.GatherAndCompare(registry, text, "twill_policy_failing") == nil
	}
	testwait.Until(t, "the kernel refuses the table", func() bool { return e.Enforced() != nil && failing() })
	if err := e.Ready(); err != nil {
		t.Errorf("at once: %v", err)
	}
	testwait.Pause(t, 30*time.Second, "a failure counts for readiness once it has lasted a minute")
	testwait.Until(t, "the node is not ready", func() bool { return e.Ready() != nil })
	if err := e.Ready(); !strings.Contains(err.Error(), "operation not permitted") || !failing() {
		t.Errorf("after a minute: %v", err)
	}
	release()
	testwait.Until(t, "policies are enforced", func() bool { return e.Enforced() == nil })
	if err := e.Ready(); err != nil || failing() {
		t.Errorf("once nobody owns the table: %v", err)
	}
}

// own lets a program own the table until release is called.
func own(t *testing.T, h host.Host) (release func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", h.Name, "nft", "--interactive")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "add table ip twill-policy { flags owner; }\n"); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the table is owned", func() bool {
		text, _ := h.Exec(t.Context(), "nft", "list", "tables")
		return strings.Contains(text, "twill-policy")
	})
	return func() {
		in.Close()
		_ = cmd.Wait()
	}
}
