package enforce

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/policy"
)

// TestBudgetReports: a policy beyond the budget is an event of its object, a line in the log and a number, once while it is so;
// what passes half of a budget likewise.
func TestBudgetReports(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.Budget = &policy.Budget{Namespace: 1000, Node: 2000}
		r.protect()
		namespace := r.snap.Pods[0].Namespace
		r.snap.Policies, r.snap.ClusterPolicies = nil, nil
		for i, n := range []int{1, 600, 2000} {
			p := policy.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("p", i), UID: "u", CreationTimestamp: metav1.Unix(int64(i), 0)}}
			p.Spec.PolicyTypes = []policy.Direction{policy.Ingress}
			block := &policy.IPBlock{CIDR: "2001:db8::/32"}
			for k := range n {
				block.Except = append(block.Except, fmt.Sprintf("2001:db8:%x::%x/128", i, 2*k))
			}
			p.Spec.Ingress = []policy.IngressRule{{From: []policy.Peer{{IPBlock: block}}}}
			r.snap.Policies = append(r.snap.Policies, p)
		}
		r.sync()
		r.sync()
		left, _ := r.LeftOut()
		if fmt.Sprint(left) != fmt.Sprintf("[%s/p2]", namespace) || r.Ready() != nil {
			t.Errorf("left out are %v, and %v", left, r.Ready())
		}
		want := fmt.Sprintf("[NetworkPolicy %s/p2 PolicyLeftOut NetworkPolicy %[1]s/p1 PolicyBudgetHalf]", namespace)
		if got := fmt.Sprint(r.objects); got != want {
			t.Errorf("events are %s, want %s", got, want)
		}
		if n := strings.Count(r.log.String(), "network policies cost this node much"); n != 2 || len(r.events) != 0 {
			t.Errorf("%d lines and %d events of the node:\n%s", n, len(r.events), r.log)
		}
		for want, got := range map[float64]float64{1: testutil.ToFloat64(r.Metrics.leftOut.WithLabelValues(policy.NetworkKind)),
			0: testutil.ToFloat64(r.Metrics.leftOut.WithLabelValues(policy.ClusterKind))} {
			if got != want {
				t.Errorf("the metric of what is left out is %v, want %v", got, want)
			}
		}
		if used := testutil.ToFloat64(r.Metrics.budget.WithLabelValues("namespace")); used < 0.6 || used > 0.65 {
			t.Errorf("the metric says that %v of the budget is used", used)
		}
		r.snap.Policies = r.snap.Policies[:2]
		r.sync()
		if left, _ := r.LeftOut(); len(left) > 0 || testutil.ToFloat64(r.Metrics.leftOut.WithLabelValues(policy.NetworkKind)) != 0 {
			t.Errorf("without the policy %v are left out", left)
		}
	})
}

// TestBudgetOfRestart: what the kernel has from an earlier agent is in force.
func TestBudgetOfRestart(t *testing.T) {
	kernel := &fakeKernel{}
	for _, limit := range []int{1 << 20, 1} { // the second one is too small for any policy
		test(t, kernel, func(r *run) {
			r.Budget = &policy.Budget{Namespace: limit, Node: 1 << 20}
			r.protect()
			r.snap.Policies, r.snap.ClusterPolicies = nil, nil
			var p policy.ClusterNetworkPolicy
			p.Name, p.Spec.Tier, p.Spec.Subject.Namespaces = "guard", policy.Admin, &metav1.LabelSelector{}
			p.Spec.Ingress = []policy.ClusterIngressRule{{Action: policy.Accept, From: []policy.ClusterPeer{{Namespaces: &metav1.LabelSelector{}}}}}
			r.snap.ClusterPolicies = []policy.ClusterNetworkPolicy{p}
			r.sync()
			if _, refused := r.LeftOut(); len(refused) > 0 {
				t.Errorf("with a budget of %d %v is refused", limit, refused)
			}
			r.check("with a ClusterNetworkPolicy")
		})
	}
}

// TestReady: a plan that has failed for a minute makes the node unready, until one succeeds.
func TestReady(t *testing.T) {
	kernel := &fakeKernel{refuse: errors.New("no buffer space")}
	test(t, kernel, func(r *run) {
		r.protect()
		r.sync()
		time.Sleep(50 * time.Second)
		if err := r.Ready(); err != nil || testutil.ToFloat64(r.Metrics.failing) != 1 {
			t.Errorf("before a minute: %v, the metric is %v", err, testutil.ToFloat64(r.Metrics.failing))
		}
		time.Sleep(10 * time.Second)
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "network policies have not been enforced for 1m1s: ") || !strings.Contains(err.Error(), "no buffer space") {
			t.Errorf("after a minute: %v", err)
		}
		kernel.mu.Lock()
		kernel.refuse = nil
		kernel.mu.Unlock()
		time.Sleep(lastRetry)
		r.settle()
		if err := r.Ready(); err != nil || testutil.ToFloat64(r.Metrics.failing) != 0 {
			t.Errorf("after it succeeded: %v", err)
		}
	})
}
