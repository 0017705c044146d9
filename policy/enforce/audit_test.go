package enforce

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nflog"
	"github.com/twill-net/twill/policy"
)

// drops reports whether a rule of the kernel's drops.
func (k *fakeKernel) drops() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Contains(k.state.String(), "drop")
}

// start starts an Enforcer that audits, or one that enforces, and runs f beside it.
func start(t *testing.T, kernel *fakeKernel, audit bool, f func(*run)) {
	t.Helper()
	test(t, kernel, func(r *run) {
		r.Audit = audit
		if ok := r.protect(); ok != audit {
			t.Errorf("audit %v: pods may start before the first policies: %v", audit, ok)
		}
		f(r)
	})
}

// wait waits for as long as the fake clock says.
func (r *run) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestAudit: nothing is dropped and nothing waits, whatever an agent before this one has left and whether the source answers.
func TestAudit(t *testing.T) {
	kernel := &fakeKernel{}
	synced := func(r *run) { r.sync() }
	start(t, kernel, true, synced)
	if kernel.drops() || len(kernel.state) == 0 {
		t.Errorf("an agent that audits drops: %s", kernel.state)
	}
	start(t, kernel, true, func(r *run) {
		r.wait(2 * patience)
		if err := r.Enforced(); err != nil || len(kernel.state) == 0 {
			t.Errorf("without a source the tables of an agent that audited do not stay: %v", err)
		}
	})
	start(t, kernel, false, func(r *run) {
		r.wait(2 * patience)
		if err := r.Enforced(); err == nil || r.protect() {
			t.Error("without a source an agent that enforces takes tables that audit for its own")
		}
		r.sync()
	})
	if !kernel.drops() {
		t.Error("an agent that enforces drops nothing")
	}
	kernel.plans = nil
	start(t, kernel, true, synced)
	if kernel.drops() {
		t.Errorf("an agent that audits leaves rules that drop: %s", kernel.state)
	}
	start(t, kernel, false, synced)
	start(t, kernel, true, func(r *run) {
		r.wait(time.Second)
		if len(kernel.state) > 0 {
			t.Errorf("without a source an agent that audits leaves %s", kernel.state)
		}
		if err := r.Enforced(); err == nil || !strings.Contains(err.Error(), "not known yet") {
			t.Errorf("it says %v", err)
		}
		r.sync()
		if err := r.Enforced(); err != nil || kernel.drops() || len(kernel.state) == 0 {
			t.Errorf("when the source answers: %v, %s", err, kernel.state)
		}
	})
}

// TestAudited: what has passed although policies deny it is counted for them, most first, and is a metric of its own.
func TestAudited(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		if audits, denied := r.Audited(); audits || denied != nil {
			t.Errorf("an agent that enforces audits: %v", denied)
		}
		r.Audit = true
		r.protect()
		r.sync()
		passes, sets := fakePasses{{Kind: netstate.KindFilter, Name: "in-gone", Metric: 32}: 9}, 0
		r.mu.Lock()
		for key, c := range r.chains {
			switch {
			case c.Policies != "":
				passes[key] = 3
				sets++
			case c.Direction == policy.Ingress && c.Family == netstate.IPv4:
				passes[key] = 5
			}
		}
		r.mu.Unlock()
		r.counting.from = passes
		audits, denied := r.Audited()
		if want := (netstate.Denied{Family: "IPv4", Direction: "ingress", Packets: 5}); !audits || len(denied) != sets+1 || denied[0] != want {
			t.Errorf("got %+v, want %d, and first %+v", denied, sets+1, want)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(r.Collector())
		families, err := registry.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "twill_policy_audited_packets_total" || len(families[0].GetMetric()) != len(denied) {
			t.Errorf("the metrics are %v, %v", families, err)
		}
		for i := range 2 * mostAudited {
			name := fmt.Sprint("in-", i)
			key := netstate.Filter{Family: netstate.IPv4, Name: name}.Key()
			r.chains[key], passes[key] = policy.Chain{Family: netstate.IPv4, Direction: policy.Ingress, Policies: name}, 4
		}
		if _, denied := r.Audited(); len(denied) != mostAudited || denied[0].Packets != 5 || denied[mostAudited-1].Packets != 4 {
			t.Errorf("got %d: %v", len(denied), denied)
		}
		r.take()
		name, _ := r.isolating(netstate.IPv6)
		_ = r.LogDenied(t.Context(), fakeDenials{packets: []nflog.Packet{{Family: netstate.IPv6, Prefix: name, Data: ip6(r.snap.Pods[0].Addrs[1], r.snap.Pods[0].Addrs[1], 58, 128)}}})
		if got := r.take(); len(got) != 1 || !strings.Contains(got[0], `msg="network policies would deny a packet, which passes"`) {
			t.Errorf("the log has %q", got)
		}
	})
}
