package enforce

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// Metrics are the numbers for Prometheus.
type Metrics struct {
	objects *prometheus.GaugeVec
	changes *prometheus.CounterVec
	seconds prometheus.Histogram
	errors  prometheus.Counter
	skipped prometheus.Gauge
	denied  prometheus.Gauge
	claims  prometheus.Gauge
	failing prometheus.Gauge
	budget  *prometheus.GaugeVec
	leftOut *prometheus.GaugeVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_policy_objects",
			Help: "Sets, chains and their elements that enforce network policies on this node, when they were last made anew, by kind."},
			[]string{"kind"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twill_policy_changes_total",
			Help: "Changes of the tables of network policies that were written, by kind of object."}, []string{"kind"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "twill_policy_seconds",
			Help:    "Time from the beginning of a reconcile of network policies until the kernel enforces it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8)}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: "twill_policy_errors_total",
			Help: "Reconciles of network policies that failed; the tables stay as they were."}),
		skipped: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_policy_skipped",
			Help: "Parts of network policies that cannot be understood; the log says why."}),
		denied: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_policy_denied_pods",
			Help: "Pods' addresses without the fast path, because network policies deny an open connection there."}),
		claims: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_policy_claims",
			Help: "Pods whose status has an address of another node's pods, which does not count; the log says which."}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_policy_failing",
			Help: "1 while the last reconcile of network policies has failed."}),
		budget: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_policy_budget_used",
			Help: "Used part of the budgets of network policies: of the namespace and of the ClusterNetworkPolicy that use most, and of the node."},
			[]string{"budget"}),
		leftOut: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_policy_left_out",
			Help: "Policies beyond a budget, by kind: the pods that such a NetworkPolicy selects are closed, and of such a " +
				"ClusterNetworkPolicy the last version stays."}, []string{"kind"}),
	}
	r.MustRegister(m.objects, m.changes, m.seconds, m.errors, m.skipped, m.denied, m.claims, m.failing, m.budget, m.leftOut)
	return m
}

func (m *Metrics) setFailing(failing bool) {
	value := 0.0
	if failing {
		value = 1
	}
	m.failing.Set(value)
}

func (m *Metrics) spent(b policy.Budget, s policy.Spent) {
	m.budget.WithLabelValues("namespace").Set(policy.Most(s.Namespaces, b.Namespace))
	m.budget.WithLabelValues("cluster policy").Set(policy.Most(s.Cluster, b.Namespace))
	m.budget.WithLabelValues("node").Set(float64(s.Node) / float64(b.Node))
	m.leftOut.WithLabelValues(policy.NetworkKind).Set(float64(len(s.LeftOut)))
	m.leftOut.WithLabelValues(policy.ClusterKind).Set(float64(len(s.Refused)))
}

func (m *Metrics) made(s netstate.State, skips []policy.Skip) {
	m.skipped.Set(float64(len(skips)))
	counts := map[netstate.Kind]int{}
	for k := range s {
		counts[k.Kind]++
	}
	for k := netstate.KindSet; k <= netstate.KindHook; k++ {
		m.objects.WithLabelValues(k.String()).Set(float64(counts[k]))
	}
}

func (m *Metrics) applied(plan netstate.Plan, took time.Duration) {
	for _, c := range plan {
		m.changes.WithLabelValues(c.Key().Kind.String()).Inc()
	}
	m.seconds.Observe(took.Seconds())
}
